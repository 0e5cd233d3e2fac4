// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package guest_test

import (
	"strings"
	"testing"
	"time"

	agentv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/agent/v1"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/guest"
	"github.com/hyperfleet/hyperfleet/test/spire"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// TestIdentityLivesSPIRE: a machine's identity is renewed until the operator evicts the machine.
func TestIdentityLivesSPIRE(t *testing.T) {
	t.Parallel()

	server := spire.Start(t, spire.WithTTL(20*time.Second, 10*time.Second))
	m := newMachine(t)
	m.prepareAttestation(t, server, registerMachine(t, server, machineID, machineID, 600))
	m.cfg.Method, m.cfg.JITConfig = api.MethodCallback, ""
	m.cfg.Callback = &api.Callback{URL: "https://127.0.0.1:1", Audience: "hyperfleet"}

	attested := m.attest(t)
	first := attested.Serial()
	if first == "" {
		t.Fatal("the machine has no certificate")
	}

	timing.WaitUntil(t, "another certificate", func() bool {
		now := attested.Serial()

		return now != "" && now != first
	})

	evictMachines(t, server)
	timing.WaitUntil(t, "the agent has ended", func() bool { return attested.Serial() == "" })

	m.cfg.SPIFFE = newSPIFFE()

	_, err := attested.Fetch(t.Context(), m.cfg)
	if reason, _ := guest.GetReason(err); reason != api.ReasonAttestationRefused || !strings.Contains(err.Error(), "spire-agent has exited") {
		t.Errorf("after its eviction: %v\n%s", err, m.log)
	}
}

// evictMachines evicts all machines, as the operator evicts one.
func evictMachines(t *testing.T, server *spire.Server) {
	t.Helper()

	client := agentv1.NewAgentClient(server.Dial(t))

	agents, err := client.ListAgents(t.Context(), &agentv1.ListAgentsRequest{})
	if err != nil || len(agents.GetAgents()) == 0 {
		t.Fatalf("%d agents, %v", len(agents.GetAgents()), err)
	}

	for _, agent := range agents.GetAgents() {
		if _, err := client.DeleteAgent(t.Context(), &agentv1.DeleteAgentRequest{Id: agent.GetId()}); err != nil {
			t.Fatal(err)
		}
	}
}
