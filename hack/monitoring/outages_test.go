// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var (
	metricsHeader = regexp.MustCompile("^\\| [Mm]etric(?: `(hyperfleet_[a-z]+_)\\.{3}`)? \\|")
	metricRow     = regexp.MustCompile("^\\| (`[^|]+`) \\|")
	metricName    = regexp.MustCompile("`([a-z_]+)[`{]")
	programPrefix = regexp.MustCompile("^hyperfleet_(sentinel|broker|adapter)_")
)

// outageTable names the test in which an outage makes each alert fire and moves each metric.
type outageTable struct {
	Alerts  map[string]string `json:"alerts"`
	Metrics map[string]string `json:"metrics"`
}

// TestOutages checks that each alert and each documented metric names the test in which an injected outage makes it
// fire or moves it, and that the file of this test mentions the name.
func TestOutages(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile(filepath.Join("testdata", "outages.yaml"))
	if err != nil {
		t.Fatal(err)
	}

	var table outageTable
	if err := yaml.UnmarshalStrict(text, &table); err != nil {
		t.Fatal(err)
	}

	for _, alert := range alerts() {
		checkOutageTest(t, table.Alerts, alert.name)
		delete(table.Alerts, alert.name)
	}

	for _, metric := range listMetrics(t) {
		checkOutageTest(t, table.Metrics, metric)
		delete(table.Metrics, metric)
	}

	if len(table.Alerts)+len(table.Metrics) > 0 {
		t.Errorf("testdata/outages.yaml has names that no rule and no page has, or names twice: %v %v", table.Alerts, table.Metrics)
	}
}

// checkOutageTest checks that the test of a name exists, and that its file mentions the name.
func checkOutageTest(t *testing.T, tests map[string]string, name string) {
	t.Helper()

	folder, test, _ := strings.Cut(tests[name], " ")
	if test == "" {
		t.Errorf("testdata/outages.yaml names no test in which an outage affects %s", name)

		return
	}

	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}

	// Tests of one program may leave out the prefix of its metrics.
	short := programPrefix.ReplaceAllString(name, "")

	for _, file := range files {
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		if strings.Contains(string(code), "\nfunc "+test+"(") {
			if !regexp.MustCompile(`\b(?:` + name + `|` + short + `)(?:_count)?\b`).Match(code) {
				t.Errorf("%s in %s does not mention %s", test, file, name)
			}

			return
		}
	}

	t.Errorf("there is no %s in %s, which testdata/outages.yaml names for %s", test, folder, name)
}

// listMetrics returns the metrics that the reference pages list.
func listMetrics(t *testing.T) []string {
	t.Helper()

	var out []string

	for _, page := range []string{"metrics.md", "fleet-api.md", "adapter.md", "sentinel.md"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", "reference", page))
		if err != nil {
			t.Fatal(err)
		}

		prefix, isTable := "", false

		for line := range strings.Lines(string(text)) {
			header, row := metricsHeader.FindStringSubmatch(line), metricRow.FindStringSubmatch(line)

			switch {
			case header != nil:
				prefix, isTable = header[1], true
			case !strings.HasPrefix(line, "|"):
				isTable = false
			case isTable && row != nil:
				for _, name := range metricName.FindAllStringSubmatch(row[1], -1) {
					out = append(out, prefix+name[1])
				}
			}
		}
	}

	out = slices.DeleteFunc(out, func(name string) bool { return strings.HasSuffix(name, "_") })
	slices.Sort(out)

	return slices.Compact(out)
}
