// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire_test

import (
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	agentv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/agent/v1"
	entryv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/entry/v1"
	"github.com/spiffe/spire-api-sdk/proto/spire/api/types"
	"google.golang.org/grpc/codes"
	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/identity/spire"
	spiretest "github.com/hyperfleet/hyperfleet/test/spire"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

func TestKindsOfErrorsSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	token := mustRegister(t, newRegistry(t, server), newMachine("claim-1")).JoinToken

	cases := map[string]struct {
		change func(*spire.Options)
		kind   identity.Kind
		want   string
	}{
		"no server":            {func(o *spire.Options) { o.Address = "unix:///nowhere/at/all.sock" }, identity.Unavailable, "nowhere/at/all.sock"},
		"another trust domain": {func(o *spire.Options) { o.TrustDomain = "example.org" }, identity.TrustDomainMismatch, `"hyperfleet.io" and not "example.org"`},
		"no agent of our own": {func(o *spire.Options) {
			o.Address, o.WorkloadAPI, o.Timeout = server.Address, "unix:///nowhere/agent.sock", time.Second
		}, identity.Unavailable, "Workload API"},
	}
	odd := newMachine("claim-1")
	odd.Method = "by-word-of-honour"

	if _, err := newRegistry(t, server).Register(t.Context(), odd); !identity.Is(err, identity.Rejected) {
		t.Errorf("register with an unsupported method = %v, want a rejection", err)
	}

	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			registry := newRegistry(t, server, tc.change)
			id := newMachine("claim-1").ID

			for call, err := range map[string]error{
				"check":    registry.Check(t.Context()),
				"register": func() error { _, err := registry.Register(t.Context(), newMachine("claim-9")); return err }(),
				"verify":   func() error { _, err := registry.Verify(t.Context(), jwtHeader+".e30.c2ln", "x"); return err }(),
			} {
				if !identity.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), token) {
					t.Errorf("%s = %v, want %s with %q", call, err, tc.kind, tc.want)
				}
			}

			if tc.kind == identity.Unavailable {
				_, attested := registry.HasAttested(t.Context(), id)
				_, listed := registry.List(t.Context())

				for _, err := range []error{registry.Unregister(t.Context(), id), attested, listed} {
					if !identity.Is(err, identity.Unavailable) {
						t.Errorf("error = %v", err)
					}
				}
			}
		})
	}
}

// jwtHeader is the header of a JWT that names a key: {"alg":"ES256","kid":"key"}.
const jwtHeader = "eyJhbGciOiJFUzI1NiIsImtpZCI6ImtleSJ9"

// The same registry reconnects to a server that was stopped and started again.
func TestServerComesBackSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	registry := newRegistry(t, server)
	claim := newMachine("claim-1")

	mustRegister(t, registry, claim)
	server.Stop(t)

	if err := registry.Check(t.Context()); !identity.Is(err, identity.Unavailable) {
		t.Errorf("check without a server = %v", err)
	}

	if err := registry.Unregister(t.Context(), claim.ID); !identity.Is(err, identity.Unavailable) {
		t.Errorf("unregister without a server = %v", err)
	}

	server.Restart(t)
	timing.WaitUntil(t, "the registry reconnects to the server", func() bool { return registry.Check(t.Context()) == nil })

	if ids, err := registry.List(t.Context()); err != nil || !cmp.Equal(ids, []identity.ID{claim.ID}) {
		t.Errorf("list = %v, %v", ids, err)
	}

	if err := registry.Unregister(t.Context(), claim.ID); err != nil {
		t.Fatal(err)
	}

	if got := server.ListRegistered(t); len(got) != 0 {
		t.Errorf("left = %q", got)
	}
}

// Over TLS, the operator uses its own SVID. The server accepts it only if it is an admin's.
func TestOverTLSSPIRE(t *testing.T) {
	t.Parallel()

	const admin, plain = "/hyperfleet/operator", "/somebody"

	server := spiretest.Start(t, spiretest.WithAdmins("spiffe://hyperfleet.io"+admin))

	for path, allowed := range map[string]bool{admin: true, plain: false} {
		registry := newRegistry(t, server, func(o *spire.Options) {
			o.Address, o.WorkloadAPI = server.Address, startAgent(t, server, path).Address()
		})

		err := registry.Check(t.Context())

		switch {
		case allowed && err != nil:
			t.Errorf("check as an admin = %v", err)
		case !allowed && !identity.Is(err, identity.Rejected):
			t.Errorf("check as somebody else = %v, want a rejection", err)
		}

		if !allowed {
			continue
		}

		claim := newMachine("claim-1")
		mustRegister(t, registry, claim)
		mustRegister(t, registry, claim) // spends the first token over TLS

		if err := registry.Unregister(t.Context(), claim.ID); err != nil {
			t.Errorf("remove = %v", err)
		}
	}
}

// The CA and the JWT key of SPIRE are replaced, and the former ones revoked, while the registry and a machine use them.
// Both continue, also after the server is started again, and a new machine gets the new bundle alone.
func TestAuthoritiesAreReplacedSPIRE(t *testing.T) {
	t.Parallel()

	const admin = "/hyperfleet/operator"

	server := spiretest.Start(t, spiretest.WithAdmins("spiffe://hyperfleet.io"+admin))
	clock := testclock.NewFakePassiveClock(time.Now())
	operator := startAgent(t, server, admin)
	registry := newRegistry(t, server, func(o *spire.Options) {
		o.Address, o.WorkloadAPI, o.Clock = server.Address, operator.Address(), clock
	})
	claim := newMachine("claim-1")
	machine := server.StartAgent(t, mustRegister(t, registry, claim).JoinToken)
	mustAttest(t, machine)

	former := machine.FetchJWT(t, "before")
	mustVerify(t, registry, former, "before", claim.ID)

	id, revoke := server.ReplaceAuthorities(t)

	for name, agent := range map[string]*spiretest.Agent{"operator": operator, "machine": machine} {
		timing.WaitUntil(t, "the "+name+" has an SVID of the new CA", func() bool {
			svids, err := agent.WaitForSVIDs(t.Context())

			return err == nil && hex.EncodeToString(svids[0].Certificates[0].AuthorityKeyId) == id
		})
	}

	revoke()

	renewed := machine.FetchJWT(t, "after")

	server.Stop(t)
	server.Restart(t)
	timing.WaitUntil(t, "the registry connects with its new SVID", func() bool { return registry.Check(t.Context()) == nil })

	clock.SetTime(clock.Now().Add(2 * time.Minute))

	if _, err := registry.Verify(t.Context(), former, "before"); !identity.Is(err, identity.Rejected) {
		t.Errorf("verify with a revoked key = %v", err)
	}

	mustVerify(t, registry, renewed, "after", claim.ID)

	second := newMachine("claim-2")
	given := mustRegister(t, registry, second)

	if given.TrustBundle != server.Bundle(t) || strings.Count(given.TrustBundle, "BEGIN CERTIFICATE") != 1 {
		t.Errorf("the bundle of a new machine: %s", given.TrustBundle)
	}

	later := server.StartAgent(t, given.JoinToken, spiretest.WithBundle(given.TrustBundle))
	mustAttest(t, later)
	mustVerify(t, registry, later.FetchJWT(t, "after"), "after", second.ID)
}

func mustVerify(t *testing.T, registry *spire.Registry, token, audience string, want identity.ID) {
	t.Helper()

	if id, err := registry.Verify(t.Context(), token, audience); err != nil || id != want {
		t.Errorf("verify = %+v, %v, want %+v", id, err, want)
	}
}

// startAgent starts an agent that gives this process the SPIFFE ID with the path.
func startAgent(t *testing.T, server *spiretest.Server, path string) *spiretest.Agent {
	t.Helper()

	conn := server.Dial(t)
	node := &types.SPIFFEID{TrustDomain: server.TrustDomain, Path: "/node" + path}

	made, err := entryv1.NewEntryClient(conn).BatchCreateEntry(t.Context(), &entryv1.BatchCreateEntryRequest{Entries: []*types.Entry{{
		SpiffeId: &types.SPIFFEID{TrustDomain: server.TrustDomain, Path: path}, ParentId: node,
		Selectors: []*types.Selector{{Type: "unix", Value: "uid:" + strconv.Itoa(os.Getuid())}},
	}}})
	if err != nil || made.GetResults()[0].GetStatus().GetCode() != int32(codes.OK) {
		t.Fatalf("create entry: %v, %v", made, err)
	}

	token, err := agentv1.NewAgentClient(conn).CreateJoinToken(t.Context(), &agentv1.CreateJoinTokenRequest{Ttl: 600, AgentId: node})
	if err != nil {
		t.Fatal(err)
	}

	agent := server.StartAgent(t, token.GetValue())
	mustAttest(t, agent)

	return agent
}

func TestVerifySPIRE(t *testing.T) { //nolint:tparallel // the calls to the server are counted over all cases
	t.Parallel()

	server, otherServer := spiretest.Start(t), spiretest.Start(t)
	clock := testclock.NewFakePassiveClock(time.Now())
	seen := &callRecorder{}
	registry := newRegistry(t, server, func(o *spire.Options) { o.Clock, o.Observe = clock, seen.observe })
	claim := newMachine("claim-1")
	jwt := func(server *spiretest.Server, registry *spire.Registry, audience string) string {
		agent := server.StartAgent(t, mustRegister(t, registry, claim).JoinToken)
		mustAttest(t, agent)

		return agent.FetchJWT(t, audience)
	}

	good, forged := jwt(server, registry, "us"), jwt(otherServer, newRegistry(t, otherServer), "us")
	signature := good[strings.LastIndex(good, ".")+1:]
	other := startAgent(t, server, "/not/a/machine").FetchJWT(t, "us")

	before := seen.count("GetBundle")

	cases := map[string]struct {
		token, audience string
		good            bool
	}{
		"good":                          {token: good, audience: "us", good: true},
		"good again":                    {token: good, audience: "us", good: true},
		"for another audience":          {token: good, audience: "others"},
		"for no audience":               {token: good},
		"of another server's keys":      {token: forged, audience: "us"},
		"of no machine":                 {token: other, audience: "us"},
		"no token":                      {audience: "us"},
		"no JWT":                        {token: "abc", audience: "us"},
		"without a signature":           {token: strings.TrimSuffix(good, signature), audience: "us"},
		"algorithm none":                {token: "eyJhbGciOiJub25lIiwia2lkIjoiayJ9.e30.", audience: "us"},
		"with a header that is no JSON": {token: "YWJj.e30.c2ln", audience: "us"},
		"oversized":                     {token: good + strings.Repeat("A", 20<<10), audience: "us"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			id, err := registry.Verify(t.Context(), tc.token, tc.audience)

			switch {
			case tc.good && (err != nil || id != claim.ID):
				t.Errorf("verify = %+v, %v", id, err)
			case !tc.good && (!identity.Is(err, identity.Rejected) || id != identity.ID{}):
				t.Errorf("verify = %+v, %v, want a rejection", id, err)
			case !tc.good && tc.token != "" && strings.Contains(err.Error(), tc.token):
				t.Errorf("the error contains the token: %v", err)
			}
		})
	}

	// Many SVIDs with unknown keys make the registry fetch the keys only once within minAge.
	if fetches := seen.count("GetBundle") - before; fetches > 1 {
		t.Errorf("the keys were fetched %d times, want once", fetches)
	}

	clock.SetTime(clock.Now().Add(10 * time.Second))

	_, _ = registry.Verify(t.Context(), forged, "us")

	if fetches := seen.count("GetBundle") - before; fetches != 2 {
		t.Errorf("the keys were fetched %d times for an unknown key, want twice", fetches)
	}

	// If the registry cannot fetch the keys, it does not accept the cached keys after maxAge.
	server.Stop(t)
	clock.SetTime(clock.Now().Add(2 * time.Minute))

	if _, err := registry.Verify(t.Context(), good, "us"); !identity.Is(err, identity.Unavailable) {
		t.Errorf("verify with old keys = %v", err)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()

	good := spire.Options{Address: "unix:///run/spire/server.sock", TrustDomain: "hyperfleet.io", MachineAddress: "spire:8081"}

	cases := map[string]struct {
		change func(*spire.Options)
		want   string
	}{
		"good":                       {func(*spire.Options) {}, ""},
		"trust domain with a scheme": {func(o *spire.Options) { o.TrustDomain = "spiffe://hyper fleet" }, "trust domain"},
		"no trust domain":            {func(o *spire.Options) { o.TrustDomain = "" }, "trust domain"},
		"relative socket":            {func(o *spire.Options) { o.Address = "unix://server.sock" }, "unix:///PATH"},
		"no port":                    {func(o *spire.Options) { o.Address = "spire" }, "HOST:PORT"},
		"TLS without own agent":      {func(o *spire.Options) { o.Address = "spire:8081" }, "a server address HOST:PORT requires it"},
		"machines' address":          {func(o *spire.Options) { o.MachineAddress = "spire" }, "for machines"},
		"selector":                   {func(o *spire.Options) { o.Selectors = []string{"unix"} }, "TYPE:VALUE"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			options := good
			tc.change(&options)

			_, err := spire.New(options)
			if (err == nil) != (tc.want == "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("new = %v, want %q", err, tc.want)
			}
		})
	}
}

// With a device identity, a machine has a node entry and no token.
func TestDeviceIdentitySPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	registry := newRegistry(t, server)
	claim := newMachine("claim-1")
	claim.Method = identity.TPM

	for range 2 {
		if given := mustRegister(t, registry, claim); given.JoinToken != "" || given.TrustBundle == "" {
			t.Errorf("attestation = %+v", given)
		}
	}

	entries, err := entryv1.NewEntryClient(server.Dial(t)).ListEntries(t.Context(), &entryv1.ListEntriesRequest{
		Filter: &entryv1.ListEntriesRequest_Filter{ByParentId: &types.SPIFFEID{TrustDomain: server.TrustDomain, Path: "/spire/server"}},
	})
	if err != nil || len(entries.GetEntries()) != 1 {
		t.Fatalf("node entries = %v, %v", entries, err)
	}

	node := entries.GetEntries()[0]
	if got := node.GetSelectors()[0]; got.GetType() != "tpm_devid" || got.GetValue() != "subject:cn:"+claim.ID.UID {
		t.Errorf("selector of node entry = %v", got)
	}

	if got := server.ListRegistered(t); len(got) != 2 {
		t.Errorf("entries = %q", got)
	}

	if ids, err := registry.List(t.Context()); err != nil || !cmp.Equal(ids, []identity.ID{claim.ID}) {
		t.Errorf("list = %v, %v", ids, err)
	}

	if err := registry.Unregister(t.Context(), claim.ID); err != nil {
		t.Fatal(err)
	}

	if got := server.ListRegistered(t); len(got) != 0 {
		t.Errorf("left = %q", got)
	}
}
