// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/api"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/root"
	taskfile "github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/sentinel"
	"github.com/hyperfleet/hyperfleet/platform/sweep"
	"github.com/hyperfleet/hyperfleet/test/defaults"
)

// TestDefaults checks the defaults of the configurations of all programs of the platform, the pages that name them,
// and the comments of the types.
func TestDefaults(t *testing.T) {
	t.Parallel()

	for kind, tc := range map[string]struct {
		config any
		page   string
	}{
		"config adapter":  {taskfile.NewDeploymentSpec(taskfile.FileRequired).Default, "task-file.md"},
		"config api":      {api.Defaults(), "fleet-api.md"},
		"config broker":   {platform.DefaultBroker(), "sentinel.md"},
		"config sentinel": {sentinel.Defaults(), "sentinel.md"},
		"config sweep":    {sweep.Defaults(), "sweep.md"},
	} {
		settings := defaults.OfStruct(tc.config)
		defaults.Check(t, kind, settings)

		// The page says what is in the default entities.
		settings = slices.DeleteFunc(settings, func(s defaults.Setting) bool { return strings.HasPrefix(s.Name, "entities[") })

		page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", tc.page))
		if err != nil {
			t.Fatal(err)
		}

		defaults.CheckPage(t, string(page), settings)
		defaults.CheckComments(t, "../../api/config/platform", tc.config)
	}

	defaults.Check(t, "flag hyperfleet-platform", defaults.OfCommand(root.New()))
}

// TestDefaultsOfTheDesign checks the defaults that the design of the adapter's lifecycle names: convergence events
// after 10 seconds, drift events after 30 minutes, and stuck resources after 30 minutes.
func TestDefaultsOfTheDesign(t *testing.T) {
	t.Parallel()

	const convergence, drift, stuck = 10 * time.Second, 30 * time.Minute, 30 * time.Minute

	events := taskfile.NewDeploymentSpec(taskfile.FileRequired).Default.Events
	for name, row := range map[string]struct{ got, want time.Duration }{
		"max_age_not_reconciled of Sentinel": {sentinel.Defaults().MaxAgeNotReconciled, convergence},
		"max_age_reconciled of Sentinel":     {sentinel.Defaults().MaxAgeReconciled, drift},
		"max_age_not_reconciled of adapters": {events.MaxAgeNotReconciled, convergence},
		"max_age_reconciled of adapters":     {events.MaxAgeReconciled, drift},
		"stuck_after of the API":             {api.Defaults().StuckAfter, stuck},
	} {
		if row.got != row.want {
			t.Errorf("%s is %s, want %s", name, row.got, row.want)
		}
	}
}
