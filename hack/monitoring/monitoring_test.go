// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/test/exe"
)

const root = "../.."

// TestCommitted checks that the committed files in deploy/monitoring match the lists.
func TestCommitted(t *testing.T) {
	t.Parallel()

	made, err := renderFiles()
	if err != nil {
		t.Fatal(err)
	}

	for name, want := range made {
		got, err := os.ReadFile(filepath.Join(root, outDir, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is out of date: run make generate (%v)", name, err)
		}
	}

	there, err := filepath.Glob(filepath.Join(root, outDir, "dashboards", "*"))
	if err != nil || len(there) != len(dashboards()) {
		t.Errorf("dashboards %v, %v", there, err)
	}
}

// TestRunbooks checks that each alert has a runbook with all sections, and that each runbook has an alert.
func TestRunbooks(t *testing.T) {
	t.Parallel()

	folder := filepath.Join(root, "docs", "runbooks")

	index, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		t.Fatal(err)
	}

	pages := 1

	for _, alert := range alerts() {
		page, err := os.ReadFile(filepath.Join(folder, alert.name+".md"))
		if err != nil {
			t.Error(err)
		}

		pages++

		for _, part := range []string{"# " + alert.name + "\n", "## Meaning\n", "## Impact\n", "## Diagnosis\n", "## Mitigation\n"} {
			if !strings.Contains(string(page), part) {
				t.Errorf("the page of %s lacks %q", alert.name, part)
			}
		}

		if !strings.Contains(string(index), "["+alert.name+"]("+alert.name+".md)") {
			t.Errorf("the index lacks %s", alert.name)
		}

		if !slices.Contains([]string{critical, warning, info}, alert.severity) {
			t.Errorf("%s has severity %q", alert.name, alert.severity)
		}
	}

	if there, err := filepath.Glob(filepath.Join(folder, "*.md")); err != nil || len(there) != pages {
		t.Errorf("%d pages of %d alerts and an index: %v", len(there), pages-1, there)
	}
}

// listExpressions returns the expressions of all alerts and dashboards.
func listExpressions() []string {
	var out []string

	for _, alert := range alerts() {
		out = append(out, alert.expr)
	}

	for _, dashboard := range dashboards() {
		for _, panel := range dashboard.panels {
			for _, query := range panel.queries {
				out = append(out, query.expr)
			}
		}
	}

	return out
}

// TestMetrics checks that all metrics in expressions are documented on the reference page.
func TestMetrics(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile(filepath.Join(root, "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}

	name := regexp.MustCompile(`\b(hyperfleet|kubevirt)_[a-z0-9_]+`)

	for _, expr := range listExpressions() {
		names := name.FindAllString(expr, -1)
		if len(names) == 0 {
			t.Errorf("%s has no HyperFleet metric", expr)
		}

		for _, metric := range names {
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				if base, ok := strings.CutSuffix(metric, suffix); ok && strings.Contains(string(page), "`"+base+"`") {
					metric = base
				}
			}

			if !strings.Contains(string(page), "`"+metric+"`") {
				t.Errorf("docs/reference/metrics.md does not list %s, which is in the expression %s", metric, expr)
			}
		}
	}
}

// runPromtool runs promtool. If promtool is not installed, it skips the test.
func runPromtool(t *testing.T, args ...string) string {
	t.Helper()

	program, err := exe.FindTool("watch", "promtool")
	if err != nil {
		t.Skip(err)
	}

	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}

	return string(out)
}

// TestQueries checks with promtool that all expressions are valid.
func TestQueries(t *testing.T) {
	t.Parallel()

	variables := strings.NewReplacer("$__rate_interval", "5m", "$namespace", "ci", "$pool", "linux", "$cluster", "rack", "$system", "github")

	var rules []map[string]string
	for _, expr := range listExpressions() {
		rules = append(rules, map[string]string{"record": "x:" + string(rune('a'+len(rules)%26)) + strings.Repeat("x", len(rules)), "expr": variables.Replace(expr)})
	}

	runPromtool(t, "check", "rules", writeYAML(t, map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": rules}}}))
}

func writeYAML(t *testing.T, value any) string {
	t.Helper()

	raw, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

// TestAlerts checks with promtool that each alert fires for a faulty series and stays silent for a normal
// one.
func TestAlerts(t *testing.T) {
	t.Parallel()

	runPromtool(t, "check", "rules", writeYAML(t, map[string]any{"groups": []any{map[string]any{"name": "all", "rules": prometheusRules()}}}))

	// Remove the annotations, so that the test cases do not have to repeat them.
	bare := prometheusRules()
	for _, rule := range bare {
		delete(rule, "annotations")
	}

	file := writeYAML(t, map[string]any{"groups": []any{map[string]any{"name": "all", "rules": bare}}})

	cases, err := os.ReadFile("testdata/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}

	for _, alert := range alerts() {
		if raised := "alertname: " + alert.name + "\n        exp_alerts:\n          - "; !strings.Contains(string(cases), raised) {
			t.Errorf("no case raises %s", alert.name)
		}

		if quiet := "alertname: " + alert.name + "\n        exp_alerts: []"; !strings.Contains(string(cases), quiet) {
			t.Errorf("no case leaves %s silent", alert.name)
		}
	}

	path := filepath.Join(filepath.Dir(file), "alerts_test.yaml")
	if err := os.WriteFile(path, cases, 0o600); err != nil {
		t.Fatal(err)
	}

	runPromtool(t, "test", "rules", path)
}
