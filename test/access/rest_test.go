// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
)

// TestSamplesComeToRest checks that a second event of an unchanged resource writes nothing, also with values that an
// API server stores in another form (Kubernetes, "Quantity").
func TestSamplesComeToRest(t *testing.T) {
	t.Parallel()

	specs := map[string][]string{
		"clusters":  {`{}`, `{"tier":"gold","pods":1000}`, `{"pods":"2000m"}`, `{"pods":"1Ki"}`, `{"pods":0}`},
		"nodepools": {`{}`, `{"replicas":1000}`, `{"replicas":0}`},
		"agents":    {`{}`, `{"tier":"gold"}`},
	}

	for folder, s := range adapters() {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()

			a := readRoles(t, folder+"/rbac.yaml")
			served, url := fleetapi.Serve(t, database, s.kinds...)
			config := a.createAccount(t, fmt.Sprintf("%s-rest-%d", a.account, serial.Add(1)), permission{})

			l := newAdapterRun(t, folder, served, url, config, permission{})
			if folder == "agents" {
				l.createNamespace(restSite)
			}

			for _, spec := range specs[folder] {
				l.checkRest(folder, spec)
			}
		})
	}
}

// restSite is the namespace of this test's ManifestWorks, so that the test does not share one with other tests.
const restSite = "site-rest"

// checkRest creates a resource, sends events until one succeeds, and checks that the next one writes nothing.
func (l *adapterRun) checkRest(folder, spec string) {
	l.t.Helper()

	l.name = fmt.Sprintf("c%d", serial.Add(1))
	path := "/" + folder

	switch folder {
	case "agents":
		path = "/clusters"
		spec = strings.Replace(spec, "{", fmt.Sprintf(`{"site":%q,`, restSite), 1)
		spec = strings.Replace(spec, ",}", "}", 1)
	case "nodepools":
		l.parent = l.call(http.MethodPost, "/clusters", fmt.Sprintf(`{"name":%q,"spec":{}}`, l.name)).Id
		l.createNamespace("cluster-" + l.name)
		path = "/clusters/" + l.parent + path
	}

	id := l.call(http.MethodPost, path, fmt.Sprintf(`{"name":%q,"spec":%s}`, l.name, spec)).Id

	l.waitFor("an event succeeds", func() string {
		if result := l.sendEvent(id); result.Status != pipeline.Success {
			return fmt.Sprintf("%s: %v", result.Status, result.Failure)
		}

		return ""
	})

	for pass := range 2 {
		result := l.sendEvent(id)

		for _, outcome := range result.Resources.Outcomes {
			if result.Status != pipeline.Success || outcome.Operation != resources.None || len(outcome.Pruned) > 0 {
				l.t.Errorf("spec %s: pass %d of the unchanged resource: %s: %s of %s, %s, pruned %v, %v",
					spec, pass+2, result.Status, outcome.Operation, outcome.Resource, outcome.Reason, outcome.Pruned, result.Failure)
			}
		}
	}
}
