"""Reads the files of a deployment from standard input, and writes what tests compare as JSON."""

import io
import json
import sys

import compose_spec
import dockerfile_parse
import kubernetes_validate
import promql_parser
import yaml


def documents(text):
    """All documents of a YAML file."""
    return list(yaml.safe_load_all(text))


def compose(text):
    """A Compose file, which must be one by its specification."""
    (file,) = documents(text)
    compose_spec.PyCompose.from_json(json.dumps(file)).validate()
    return file


def kubernetes(text):
    """The objects of a manifest; those of Kubernetes itself must fit its schemas."""
    objects = documents(text)
    for each in objects:
        if each["apiVersion"] != "inference.networking.k8s.io/v1":
            kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    return objects


def dockerfile(text):
    """The instructions of a Dockerfile."""
    parser = dockerfile_parse.DockerfileParser(fileobj=io.BytesIO(text.encode()))
    return [[each["instruction"], each["value"]] for each in parser.structure]


def promql(text):
    """For each of several expressions: its series, with their matchers, and the labels that it groups by."""
    read = []
    for expression in json.loads(text):
        series, groups = [], []

        def visit(node):
            if isinstance(node, promql_parser.MatrixSelector):
                node = node.vector_selector
            if isinstance(node, promql_parser.VectorSelector):
                matchers = [[each.name, str(each.op), each.value] for each in node.matchers.matchers]
                series.append([node.name, matchers])
            if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
                groups.extend(node.modifier.labels)

        promql_parser.walk(promql_parser.parse(expression), visit)
        read.append({"series": series, "groups": groups})
    return read


json.dump(globals()[sys.argv[1]](sys.stdin.read()), sys.stdout)
