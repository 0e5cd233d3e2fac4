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
)

// patience is how long a real server and agent may take.
const patience = time.Minute

// calls are the operations that were observed.
type calls struct {
	mu   sync.Mutex
	seen map[string]int
}

func (c *calls) observe(operation string, _ time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.seen == nil {
		c.seen = map[string]int{}
	}

	if err != nil {
		operation += " failed"
	}

	c.seen[operation]++
}

func (c *calls) count(operation string) int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.seen[operation]
}

// open makes a registry whose workload is this process.
func open(t *testing.T, server *spiretest.Server, change ...func(*spire.Options)) *spire.Registry {
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

func machine(name string) identity.Machine {
	return identity.Machine{
		ID: identity.ID{Namespace: "team-a", Name: name, UID: "uid-of-" + name}, Method: identity.JoinToken,
		TTL: 10 * time.Minute, Template: "linux", Pool: "pool", Workload: "github-actions",
	}
}

func register(t *testing.T, registry *spire.Registry, machine identity.Machine) identity.Attestation {
	t.Helper()

	out, err := registry.Register(t.Context(), machine)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

func attest(t *testing.T, agent *spiretest.Agent) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	svids, err := agent.SVIDs(ctx)
	if err != nil {
		t.Fatal(err)
	}

	if len(svids) != 1 {
		t.Fatalf("%d SVIDs, want one", len(svids))
	}

	return svids[0].ID.String()
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()

	for deadline := time.Now().Add(patience); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it did not come to that", what)
		}
	}
}

// The life of a machine: registered, attested, its JWT-SVID verified, removed while its agent
// runs.
func TestLifeOfAMachineSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	seen := &calls{}
	registry := open(t, server, func(o *spire.Options) { o.Observe = seen.observe })
	claim := machine("claim-1")

	if err := registry.Check(t.Context()); err != nil {
		t.Fatal(err)
	}

	given := register(t, registry, claim)
	if given.JoinToken == "" || given.ServerAddress != server.Address || given.TrustBundle != server.Bundle(t) {
		t.Errorf("attestation = %+v", given)
	}

	if known, err := registry.Attested(t.Context(), claim.ID); known || err != nil {
		t.Errorf("attested before the agent ran: %v, %v", known, err)
	}

	agent := server.Agent(t, given.JoinToken)
	if got, want := attest(t, agent), claim.ID.URI(server.TrustDomain); got != want {
		t.Errorf("SPIFFE ID = %s, want %s", got, want)
	}

	if known, err := registry.Attested(t.Context(), claim.ID); !known || err != nil {
		t.Errorf("attested = %v, %v", known, err)
	}

	token := agent.JWT(t, "hyperfleet")
	if got, err := registry.Verify(t.Context(), token, "hyperfleet"); err != nil || got != claim.ID {
		t.Errorf("verify = %+v, %v; want %+v", got, err, claim.ID)
	}

	if ids, err := registry.List(t.Context()); err != nil || !cmp.Equal(ids, []identity.ID{claim.ID}) {
		t.Errorf("list = %v, %v", ids, err)
	}

	if err := registry.Remove(t.Context(), claim.ID); err != nil {
		t.Fatal(err)
	}

	if got := server.Known(t); len(got) != 0 {
		t.Errorf("left after removal: %q", got)
	}

	// The agent asks every 5 seconds; refused, it ends.
	select {
	case <-agent.Done():
	case <-time.After(patience):
		t.Error("the agent of a removed machine goes on")
	}

	if got := server.Known(t); len(got) != 0 {
		t.Errorf("the agent came back: %q", got)
	}

	if err := registry.Remove(t.Context(), claim.ID); err != nil {
		t.Errorf("second removal: %v", err)
	}

	if seen.count("CreateJoinToken") != 1 || seen.count("DeleteAgent") == 0 || seen.count("DeleteAgent failed") != 0 {
		t.Errorf("observed calls = %v", seen.seen)
	}
}

// A crash may come between any two calls: whatever was done before is no hindrance, and a
// machine's older tokens are worth nothing.
func TestRegisterAgainSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	registry := open(t, server)
	claim := machine("claim-1")

	first := register(t, registry, claim)
	second := register(t, open(t, server), claim)

	if first.JoinToken == second.JoinToken {
		t.Fatal("the same token twice")
	}

	if got := server.Known(t); len(got) != 2 {
		t.Errorf("entries = %q, want an alias and a workload entry", got)
	}

	// The first token is used up, and leaves no agent.
	refused := server.Agent(t, first.JoinToken)

	eventually(t, "the first token is refused", func() bool {
		return strings.Contains(refused.Log(t), "join token does not exist or has already been used")
	})
	refused.Stop(t)

	agent := server.Agent(t, second.JoinToken)
	if got, want := attest(t, agent), claim.ID.URI(server.TrustDomain); got != want {
		t.Errorf("SPIFFE ID = %s, want %s", got, want)
	}

	// Used once, it is refused to another machine.
	replay := server.Agent(t, second.JoinToken)

	eventually(t, "the token's second use is refused", func() bool {
		return strings.Contains(replay.Log(t), "join token does not exist or has already been used")
	})

	// Registered anew, the machine that has attested has to go.
	third := register(t, registry, claim)

	select {
	case <-agent.Done():
	case <-time.After(patience):
		t.Error("the agent of the earlier token goes on")
	}

	if err := registry.Remove(t.Context(), claim.ID); err != nil {
		t.Fatal(err)
	}

	late := server.Agent(t, third.JoinToken)

	eventually(t, "a removed machine's token is refused", func() bool {
		return strings.Contains(late.Log(t), "join token does not exist or has already been used")
	})

	if got := server.Known(t); len(got) != 0 {
		t.Errorf("left = %q", got)
	}
}

func TestTokenExpiresSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	registry := open(t, server)
	claim := machine("claim-1")
	claim.TTL = time.Second

	given := register(t, registry, claim)

	time.Sleep(2100 * time.Millisecond) // the server's own clock

	agent := server.Agent(t, given.JoinToken)

	eventually(t, "the token is refused", func() bool { return strings.Contains(agent.Log(t), "join token expired") })

	if err := registry.Remove(t.Context(), claim.ID); err != nil {
		t.Fatal(err)
	}

	if got := server.Known(t); len(got) != 0 {
		t.Errorf("left = %q", got)
	}
}

// Two operators and a person share a server.
func TestOthersAreLeftAloneSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	ours := open(t, server)
	theirs := open(t, server, func(o *spire.Options) { o.OperatorUID = "operator-1." })
	mine, other := machine("claim-1"), machine("claim-2")

	register(t, ours, mine)
	register(t, theirs, other)

	// A person's entries: one below the machine's id, one of the machine's id elsewhere.
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

	// What somebody else registered under the same identity is not taken over.
	if _, err := ours.Register(t.Context(), other); !identity.Is(err, identity.Rejected) || !strings.Contains(err.Error(), "somebody else") {
		t.Errorf("register another operator's machine = %v, want a rejection", err)
	}

	if err := ours.Remove(t.Context(), mine.ID); err != nil {
		t.Fatal(err)
	}

	want := map[string]int{
		"entry /metrics": 1, "entry " + mine.ID.Path(): 1, "entry " + other.ID.Path(): 2,
	}
	got := map[string]int{}

	for _, one := range server.Known(t) {
		got[one]++
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// An entry of ours with other selectors, of another version, is replaced.
func TestChangedSelectorsSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	claim := machine("claim-1")

	register(t, open(t, server, func(o *spire.Options) { o.Selectors = []string{"unix:uid:12"} }), claim)
	given := register(t, open(t, server), claim)

	if got, want := attest(t, server.Agent(t, given.JoinToken)), claim.ID.URI(server.TrustDomain); got != want {
		t.Errorf("SPIFFE ID = %s, want %s", got, want)
	}
}
