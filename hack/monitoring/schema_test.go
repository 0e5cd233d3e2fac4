// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	schema "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	statpanel "github.com/grafana/grafana-foundation-sdk/go/stat"
	timepanel "github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// validate validates a dashboard with Grafana's own schemas of dashboards, of our panel types, and of
// Prometheus queries.
func validate(text []byte) error {
	cog.NewRuntime().RegisterPanelcfgVariant(timepanel.VariantConfig())
	cog.NewRuntime().RegisterPanelcfgVariant(statpanel.VariantConfig())
	cog.NewRuntime().RegisterDataqueryVariant(prometheus.VariantConfig())

	var read schema.Dashboard //nolint:staticcheck // every Grafana imports this form; version 2 requires Grafana 12

	for _, err := range []error{read.UnmarshalJSONStrict(text), read.Validate()} {
		// Validate returns a non-nil error also for an empty list of problems.
		if err != nil && err.Error() != "" {
			return err
		}
	}

	return nil
}

// TestSchema checks that the dashboards are valid in Grafana's schema, and that the schema knows every key.
func TestSchema(t *testing.T) {
	all, err := filepath.Glob(filepath.Join(root, outDir, "dashboards", "*"))
	if err != nil || len(all) == 0 {
		t.Fatalf("dashboards %v, %v", all, err)
	}

	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		if err := validate(text); err != nil {
			t.Errorf("%s: %v", filepath.Base(file), err)
		}

		for was, is := range map[string]string{`"panels": [`: `"panel": [`, `"displayMode": "list"`: `"displayMode": 7`, `"expr": `: `"query": `, `"calcs"`: `"calc"`} {
			if !strings.Contains(string(text), was) {
				continue
			}

			if validate([]byte(strings.Replace(string(text), was, is, 1))) == nil {
				t.Errorf("%s: %s instead of %s is not rejected", filepath.Base(file), is, was)
			}
		}
	}
}
