// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command monitoring writes deploy/monitoring out of the lists of this package: the alerts
// (alerts.go) and the panels of the dashboards (dashboards.go). Run it from the repository's
// root. The same lists always give the same files.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	outDir      = "deploy/monitoring"
	runbookBase = "https://github.com/hyperfleet/hyperfleet/blob/main/docs/runbooks/"
	header      = "# Copyright The HyperFleet Authors.\n# SPDX-License-Identifier: Apache-2.0\n" +
		"#\n# Made by hack/monitoring: make generate.\n"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "monitoring:", err)
		os.Exit(1)
	}
}

// run writes the files of the repository at root.
func run(root string) error {
	files, err := files()
	if err != nil {
		return err
	}

	for name, content := range files {
		path := filepath.Join(root, outDir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}

		if err := os.WriteFile(path, content, 0o600); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}

	return nil
}

// files are all that is made, by their names.
func files() (map[string][]byte, error) {
	out := map[string][]byte{}

	rule, err := yaml.Marshal(prometheusRule())
	if err != nil {
		return nil, fmt.Errorf("write alerts: %w", err)
	}

	out["prometheusrule.yaml"] = append([]byte(header), rule...)

	names := make([]string, 0, len(dashboards()))

	for _, dashboard := range dashboards() {
		var text bytes.Buffer

		encoder := json.NewEncoder(&text)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)

		if err := encoder.Encode(dashboard.grafana()); err != nil {
			return nil, fmt.Errorf("write dashboard %s: %w", dashboard.uid, err)
		}

		name := "dashboards/" + dashboard.uid + ".json"
		out[name] = text.Bytes()
		names = append(names, name)
	}

	out["kustomization.yaml"] = kustomization(names)

	return out, nil
}

// kustomization applies everything: a ConfigMap for each dashboard, with the label that Grafana's
// sidecar looks for.
func kustomization(dashboards []string) []byte {
	var out strings.Builder

	out.WriteString(header)
	out.WriteString(`# For a cluster with the Prometheus operator: kubectl apply -k deploy/monitoring
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: hyperfleet-system
resources:
  - servicemonitor.yaml
  - podmonitor.yaml
  - reader.yaml
  - prometheusrule.yaml
generatorOptions:
  disableNameSuffixHash: true
  labels:
    grafana_dashboard: "1"
configMapGenerator:
`)

	for _, name := range dashboards {
		fmt.Fprintf(&out, "  - name: %s\n    files: [%s]\n", strings.TrimSuffix(filepath.Base(name), ".json"), name)
	}

	return []byte(out.String())
}

// rules are the alerts as Prometheus reads them.
func rules() []map[string]any {
	out := make([]map[string]any, 0, len(alerts()))

	for _, alert := range alerts() {
		out = append(out, map[string]any{
			"alert": alert.name, "expr": alert.expr, "for": alert.lasts,
			"labels": map[string]string{"severity": alert.severity},
			"annotations": map[string]string{
				"summary": alert.summary, "description": alert.description,
				"runbook_url": runbookBase + alert.name + ".md",
			},
		})
	}

	return out
}

// prometheusRule is the object with all alerts.
func prometheusRule() map[string]any {
	return map[string]any{
		"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
		"metadata": map[string]any{
			"name": "hyperfleet", "namespace": "hyperfleet-system",
			"labels": map[string]string{"app.kubernetes.io/part-of": "hyperfleet"},
		},
		"spec": map[string]any{"groups": []any{map[string]any{"name": "hyperfleet", "rules": rules()}}},
	}
}
