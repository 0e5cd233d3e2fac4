// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
	"github.com/hyperfleet/hyperfleet/platform/sweep"
)

// The API writes its IDs in one form. An object whose label has an ID in another form counts as unowned
// even if its HMAC is valid, because the API would respond that the resource does not exist. test/access
// tests the rest of sweep.
func TestNonCanonicalIDs(t *testing.T) {
	t.Parallel()

	const sweeping = "spelling"

	listening := httptest.NewServer(api)
	t.Cleanup(listening.Close)

	calls, err := client.New(platform.APIClient{BaseURL: listening.URL}, client.Options{})
	must(t, err)

	f, id, want := newFixture(t, newSimpleTask()), uuid.Must(uuid.NewV7()).String(), map[string]string{}

	for label, reason := range map[string]string{
		id: "", strings.ToUpper(id): sweep.ReasonNoResourceID, strings.ReplaceAll(id, "-", ""): sweep.ReasonNoResourceID,
		"cluster-1": sweep.ReasonNoResourceID,
	} {
		want[label] = reason
		object := f.newConfigMap("named-" + strings.ToLower(uuid.NewString()))

		mark := stamp.Owner{ResourceID: label, ResourceName: "x", Generation: 1}
		must(t, stamp.New(sweeping, newKeys(t, strings.Repeat("k", 32))).SetOwnership(object, mark))

		must(t, env.Client.Create(t.Context(), object))
	}

	conf := sweep.Defaults()
	conf.MinAge, conf.MaxShare, conf.Adapters, conf.Kinds = 0, 1, []string{sweeping}, []string{"ConfigMap"}

	report, err := sweep.Run(t.Context(), sweep.Options{Config: conf, Kube: env.Config, API: calls, Keys: newKeys(t, strings.Repeat("k", 32))})
	must(t, err)

	got := map[string]string{}
	for _, item := range report.Items {
		got[item.ResourceID] = item.Reason
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons by label (-want +got):\n%s", diff)
	}
}
