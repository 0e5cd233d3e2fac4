// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	v1alpha1 "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

func TestSPIRESettings(t *testing.T) {
	t.Parallel()

	socket := func(cfg *v1alpha1.SPIRE) {
		cfg.Address, cfg.MachineAddress = "unix:///run/spire/server.sock", "spire.example.com:8081"
	}

	cases := map[string]struct {
		change func(*v1alpha1.SPIRE)
		words  string
	}{
		"none":      {func(*v1alpha1.SPIRE) {}, ""},
		"by socket": {socket, ""},
		"over TLS": {func(cfg *v1alpha1.SPIRE) {
			socket(cfg)
			cfg.Address, cfg.WorkloadAPI = "spire:8081", "unix:///run/spire/agent.sock"
		}, ""},
		"over TLS without an agent": {func(cfg *v1alpha1.SPIRE) {
			socket(cfg)
			cfg.Address = "spire:8081"
		}, "identity.spire: "},
		"machines' address alone": {func(cfg *v1alpha1.SPIRE) { cfg.MachineAddress = "spire:8081" }, "identity.spire.address"},
		"no address for machines": {func(cfg *v1alpha1.SPIRE) {
			socket(cfg)
			cfg.MachineAddress = ""
		}, "identity.spire.machineAddress"},
		"no trust domain": {func(cfg *v1alpha1.SPIRE) {
			socket(cfg)
			cfg.TrustDomain = ""
		}, "trust domain"},
		"no time": {func(cfg *v1alpha1.SPIRE) {
			socket(cfg)
			cfg.Timeout = 0
		}, "identity.spire.timeout"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			cfg := v1alpha1.Default()
			tc.change(&cfg.Identity.SPIRE)

			err := validate(cfg)
			if (err == nil) != (tc.words == "") || (err != nil && !strings.Contains(err.Error(), tc.words)) {
				t.Errorf("validate = %v, want %q", err, tc.words)
			}

			if err != nil {
				return
			}

			made, err := registry(cfg.Identity.SPIRE, "operator", nil)
			if err != nil || (made == nil) != (cfg.Identity.SPIRE.Address == "") {
				t.Errorf("registry = %v, %v", made, err)
			}
		})
	}
}

// Calls to the SPIRE server are counted, by the name of the call.
func TestCallsToSPIREAreCounted(t *testing.T) {
	t.Parallel()

	metrics := prometheus.NewRegistry()

	transports, err := newTransports(metrics, nil)
	if err != nil {
		t.Fatal(err)
	}

	cfg := v1alpha1.SPIRE{
		Address: "unix:///nowhere/server.sock", TrustDomain: "hyperfleet.io", MachineAddress: "spire:8081", Timeout: time.Second,
	}

	made, err := registry(cfg, "operator", transports.identity)
	if err != nil {
		t.Fatal(err)
	}

	err = errors.Join(made.Check(t.Context()), made.Close())
	if err == nil {
		t.Fatal("a server that is not there answered")
	}

	if got := testutil.CollectAndCount(metrics, "hyperfleet_external_call_duration_seconds"); got != 1 {
		t.Errorf("%d series, want that of GetBundle", got)
	}
}
