// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	entryv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/entry/v1"
	"github.com/spiffe/spire-api-sdk/proto/spire/api/types"

	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/identity/spire"
	spiretest "github.com/hyperfleet/hyperfleet/test/spire"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// waitTimeout limits each wait for a real server or agent.
const waitTimeout = time.Minute

// callRecorder counts the observed calls by operation.
type callRecorder struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *callRecorder) observe(operation string, _ time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.counts == nil {
		c.counts = map[string]int{}
	}

	if err != nil {
		operation += " failed"
	}

	c.counts[operation]++
}

func (c *callRecorder) count(operation string) int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.counts[operation]
}

// newRegistry returns a registry that gives the identity of a machine to this process.
func newRegistry(t *testing.T, server *spiretest.Server, change ...func(*spire.Options)) *spire.Registry {
	t.Helper()

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	options := spire.Options{
		Address: "unix://" + server.Socket, TrustDomain: server.TrustDomain, MachineAddress: server.Address, OperatorUID: "operator-1",
		Selectors: []string{"unix:uid:" + strconv.Itoa(os.Getuid()), "unix:path:" + self},
	}
	for _, change := range change {
		change(&options)
	}

	registry, err := spire.New(options)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := registry.Close(); err != nil {
			t.Error(err)
		}
	})

	return registry
}

func newMachine(name string) identity.Machine {
	return identity.Machine{
		ID: identity.ID{Namespace: "team-a", Name: name, UID: "uid-of-" + name}, Method: identity.JoinToken,
		TTL: 10 * time.Minute, Template: "linux", Pool: "pool", Workload: "github-actions",
	}
}

func mustRegister(t *testing.T, registry *spire.Registry, machine identity.Machine) identity.Attestation {
	t.Helper()

	out, err := registry.Register(t.Context(), machine)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

func mustAttest(t *testing.T, agent *spiretest.Agent) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()

	svids, err := agent.WaitForSVIDs(ctx)
	if err != nil {
		t.Fatal(err)
	}

	if len(svids) != 1 {
		t.Fatalf("%d SVIDs, want one", len(svids))
	}

	return svids[0].ID.String()
}

// A machine is registered and attests, its JWT-SVID is verified, and it is unregistered while its agent
// runs.
func TestLifeOfAMachineSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	seen := &callRecorder{}
	registry := newRegistry(t, server, func(o *spire.Options) { o.Observe = seen.observe })
	claim := newMachine("claim-1")

	if err := registry.Check(t.Context()); err != nil {
		t.Fatal(err)
	}

	given := mustRegister(t, registry, claim)
	if given.JoinToken == "" || given.ServerAddress != server.Address || given.TrustBundle != server.Bundle(t) {
		t.Errorf("attestation = %+v", given)
	}

	if known, err := registry.HasAttested(t.Context(), claim.ID); known || err != nil {
		t.Errorf("attested before the agent ran: %v, %v", known, err)
	}

	agent := server.StartAgent(t, given.JoinToken)
	if got, want := mustAttest(t, agent), claim.ID.URI(server.TrustDomain); got != want {
		t.Errorf("SPIFFE ID = %s, want %s", got, want)
	}

	if known, err := registry.HasAttested(t.Context(), claim.ID); !known || err != nil {
		t.Errorf("attested = %v, %v", known, err)
	}

	token := agent.FetchJWT(t, "hyperfleet")
	if got, err := registry.Verify(t.Context(), token, "hyperfleet"); err != nil || got != claim.ID {
		t.Errorf("verify = %+v, %v; want %+v", got, err, claim.ID)
	}

	if ids, err := registry.List(t.Context()); err != nil || !cmp.Equal(ids, []identity.ID{claim.ID}) {
		t.Errorf("list = %v, %v", ids, err)
	}

	if err := registry.Unregister(t.Context(), claim.ID); err != nil {
		t.Fatal(err)
	}

	if got := server.ListRegistered(t); len(got) != 0 {
		t.Errorf("left after the machine was unregistered: %q", got)
	}

	// The agent sends a request every 5 seconds. It ends when the server rejects the request.
	select {
	case <-agent.Done():
	case <-time.After(waitTimeout):
		t.Error("the agent of an unregistered machine still runs")
	}

	if got := server.ListRegistered(t); len(got) != 0 {
		t.Errorf("the agent attested again: %q", got)
	}

	if err := registry.Unregister(t.Context(), claim.ID); err != nil {
		t.Errorf("second unregister = %v", err)
	}

	if seen.count("CreateJoinToken") != 1 || seen.count("DeleteAgent") == 0 || seen.count("DeleteAgent failed") != 0 {
		t.Errorf("observed calls = %v", seen.counts)
	}
}

// The operator can crash between any two calls. It can then register the machine again, and the machine's
// earlier tokens become invalid.
func TestRegisterAgainSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	registry := newRegistry(t, server)
	claim := newMachine("claim-1")

	first := mustRegister(t, registry, claim)
	second := mustRegister(t, newRegistry(t, server), claim)

	if first.JoinToken == second.JoinToken {
		t.Fatal("the same token twice")
	}

	if got := server.ListRegistered(t); len(got) != 2 {
		t.Errorf("entries = %q, want an alias and a workload entry", got)
	}

	// The first token was spent, and no agent is left of it.
	refused := server.StartAgent(t, first.JoinToken)

	timing.WaitUntil(t, "the first token is refused", func() bool {
		return strings.Contains(refused.Log(t), "join token does not exist or has already been used")
	})
	refused.Stop(t)

	agent := server.StartAgent(t, second.JoinToken)
	if got, want := mustAttest(t, agent), claim.ID.URI(server.TrustDomain); got != want {
		t.Errorf("SPIFFE ID = %s, want %s", got, want)
	}

	// The server rejects the second use of the token by another machine.
	replay := server.StartAgent(t, second.JoinToken)

	timing.WaitUntil(t, "the token's second use is refused", func() bool {
		return strings.Contains(replay.Log(t), "join token does not exist or has already been used")
	})

	// When the machine is registered again, the agent that has attested is evicted.
	third := mustRegister(t, registry, claim)

	select {
	case <-agent.Done():
	case <-time.After(waitTimeout):
		t.Error("the agent of the earlier token still runs")
	}

	if err := registry.Unregister(t.Context(), claim.ID); err != nil {
		t.Fatal(err)
	}

	late := server.StartAgent(t, third.JoinToken)

	timing.WaitUntil(t, "the token of an unregistered machine is refused", func() bool {
		return strings.Contains(late.Log(t), "join token does not exist or has already been used")
	})

	if got := server.ListRegistered(t); len(got) != 0 {
		t.Errorf("left = %q", got)
	}
}

func TestTokenExpiresSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	registry := newRegistry(t, server)
	claim := newMachine("claim-1")
	claim.TTL = time.Second

	given := mustRegister(t, registry, claim)

	time.Sleep(2100 * time.Millisecond) // the server's own clock

	agent := server.StartAgent(t, given.JoinToken)

	timing.WaitUntil(t, "the token is refused", func() bool { return strings.Contains(agent.Log(t), "join token expired") })

	if err := registry.Unregister(t.Context(), claim.ID); err != nil {
		t.Fatal(err)
	}

	if got := server.ListRegistered(t); len(got) != 0 {
		t.Errorf("left = %q", got)
	}
}

// Two operators and a person use the same server.
func TestOthersAreLeftAloneSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	ours := newRegistry(t, server)
	theirs := newRegistry(t, server, func(o *spire.Options) { o.OperatorUID = "operator-1." })
	mine, other := newMachine("claim-1"), newMachine("claim-2")

	mustRegister(t, ours, mine)
	mustRegister(t, theirs, other)

	// A person creates two entries: one whose parent is the machine's SPIFFE ID, and one with the machine's
	// SPIFFE ID and another parent.
	entries := entryv1.NewEntryClient(server.Dial(t))
	id := &types.SPIFFEID{TrustDomain: server.TrustDomain, Path: mine.ID.Path()}

	made, err := entries.BatchCreateEntry(t.Context(), &entryv1.BatchCreateEntryRequest{Entries: []*types.Entry{
		{
			SpiffeId: &types.SPIFFEID{TrustDomain: server.TrustDomain, Path: "/metrics"}, ParentId: id,
			Selectors: []*types.Selector{{Type: "unix", Value: "uid:9"}},
		},
		{
			SpiffeId: id, ParentId: &types.SPIFFEID{TrustDomain: server.TrustDomain, Path: "/elsewhere"},
			Selectors: []*types.Selector{{Type: "unix", Value: "uid:9"}},
		},
	}})
	if err != nil || made.GetResults()[0].GetStatus().GetCode() != 0 || made.GetResults()[1].GetStatus().GetCode() != 0 {
		t.Fatalf("make entries: %v, %v", made, err)
	}

	for _, tc := range []struct {
		registry *spire.Registry
		want     identity.ID
	}{{ours, mine.ID}, {theirs, other.ID}} {
		if ids, err := tc.registry.List(t.Context()); err != nil || !cmp.Equal(ids, []identity.ID{tc.want}) {
			t.Errorf("list = %v, %v, want %v", ids, err, tc.want)
		}
	}

	// The operator does not take over an entry of another operator with the same identity.
	if _, err := ours.Register(t.Context(), other); !identity.Is(err, identity.Rejected) || !strings.Contains(err.Error(), "another owner") {
		t.Errorf("register another operator's machine = %v, want a rejection", err)
	}

	if err := ours.Unregister(t.Context(), mine.ID); err != nil {
		t.Fatal(err)
	}

	want := map[string]int{
		"entry /metrics": 1, "entry " + mine.ID.Path(): 1, "entry " + other.ID.Path(): 2,
	}
	got := map[string]int{}

	for _, object := range server.ListRegistered(t) {
		got[object]++
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// The operator replaces its own entry if another version of the operator created it with other selectors.
func TestChangedSelectorsSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	claim := newMachine("claim-1")

	mustRegister(t, newRegistry(t, server, func(o *spire.Options) { o.Selectors = []string{"unix:uid:12"} }), claim)
	given := mustRegister(t, newRegistry(t, server), claim)

	if got, want := mustAttest(t, server.StartAgent(t, given.JoinToken)), claim.ID.URI(server.TrustDomain); got != want {
		t.Errorf("SPIFFE ID = %s, want %s", got, want)
	}
}
