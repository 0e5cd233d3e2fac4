// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire_test

import (
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
)

func TestKindsOfErrorsSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	token := register(t, open(t, server), machine("claim-1")).JoinToken

	cases := map[string]struct {
		change func(*spire.Options)
		kind   identity.Kind
		words  string
	}{
		"no server":            {func(o *spire.Options) { o.Address = "unix:///nowhere/at/all.sock" }, identity.Unavailable, "nowhere/at/all.sock"},
		"another trust domain": {func(o *spire.Options) { o.TrustDomain = "example.org" }, identity.TrustDomainMismatch, `"hyperfleet.io" and not "example.org"`},
		"no agent of our own": {func(o *spire.Options) {
			o.Address, o.WorkloadAPI, o.Timeout = server.Address, "unix:///nowhere/agent.sock", time.Second
		}, identity.Unavailable, "Workload API"},
	}
	odd := machine("claim-1")
	odd.Method = "by-word-of-honour"

	if _, err := open(t, server).Register(t.Context(), odd); !identity.Is(err, identity.Rejected) {
		t.Errorf("register by a method that there is not = %v", err)
	}

	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			registry := open(t, server, tc.change)
			id := machine("claim-1").ID

			for call, err := range map[string]error{
				"check":    registry.Check(t.Context()),
				"register": func() error { _, err := registry.Register(t.Context(), machine("claim-9")); return err }(),
				"verify":   func() error { _, err := registry.Verify(t.Context(), head+".e30.c2ln", "x"); return err }(),
			} {
				if !identity.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.words) || strings.Contains(err.Error(), token) {
					t.Errorf("%s = %v, want %s with %q", call, err, tc.kind, tc.words)
				}
			}

			if tc.kind == identity.Unavailable {
				_, attested := registry.Attested(t.Context(), id)
				_, listed := registry.List(t.Context())

				for _, err := range []error{registry.Remove(t.Context(), id), attested, listed} {
					if !identity.Is(err, identity.Unavailable) {
						t.Errorf("error = %v", err)
					}
				}
			}
		})
	}
}

// head is the header of a JWT that names a key: {"alg":"ES256","kid":"key"}.
const head = "eyJhbGciOiJFUzI1NiIsImtpZCI6ImtleSJ9"

// A server that goes and comes back is found again by the same registry.
func TestServerComesBackSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	registry := open(t, server)
	claim := machine("claim-1")

	register(t, registry, claim)
	server.Stop(t)

	if err := registry.Check(t.Context()); !identity.Is(err, identity.Unavailable) {
		t.Errorf("check without a server = %v", err)
	}

	if err := registry.Remove(t.Context(), claim.ID); !identity.Is(err, identity.Unavailable) {
		t.Errorf("removal without a server = %v", err)
	}

	server.Restart(t)
	eventually(t, "the server is found again", func() bool { return registry.Check(t.Context()) == nil })

	if ids, err := registry.List(t.Context()); err != nil || !cmp.Equal(ids, []identity.ID{claim.ID}) {
		t.Errorf("list = %v, %v", ids, err)
	}

	if err := registry.Remove(t.Context(), claim.ID); err != nil {
		t.Fatal(err)
	}

	if got := server.Known(t); len(got) != 0 {
		t.Errorf("left = %q", got)
	}
}

// Over TLS with the operator's own SVID, which has to be an admin's.
func TestOverTLSSPIRE(t *testing.T) {
	t.Parallel()

	const admin, plain = "/hyperfleet/operator", "/somebody"

	server := spiretest.Start(t, spiretest.WithAdmins("spiffe://hyperfleet.io"+admin))

	for path, allowed := range map[string]bool{admin: true, plain: false} {
		registry := open(t, server, func(o *spire.Options) {
			o.Address, o.WorkloadAPI = server.Address, agentOf(t, server, path).Address()
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

		claim := machine("claim-1")
		register(t, registry, claim)
		register(t, registry, claim) // uses the first token up, over TLS

		if err := registry.Remove(t.Context(), claim.ID); err != nil {
			t.Errorf("remove = %v", err)
		}
	}
}

// agentOf runs an agent that gives this process an identity.
func agentOf(t *testing.T, server *spiretest.Server, path string) *spiretest.Agent {
	t.Helper()

	conn := server.Dial(t)
	node := &types.SPIFFEID{TrustDomain: server.TrustDomain, Path: "/node" + path}

	made, err := entryv1.NewEntryClient(conn).BatchCreateEntry(t.Context(), &entryv1.BatchCreateEntryRequest{Entries: []*types.Entry{{
		SpiffeId: &types.SPIFFEID{TrustDomain: server.TrustDomain, Path: path}, ParentId: node,
		Selectors: []*types.Selector{{Type: "unix", Value: "uid:" + strconv.Itoa(os.Getuid())}},
	}}})
	if err != nil || made.GetResults()[0].GetStatus().GetCode() != int32(codes.OK) {
		t.Fatalf("make entry: %v, %v", made, err)
	}

	token, err := agentv1.NewAgentClient(conn).CreateJoinToken(t.Context(), &agentv1.CreateJoinTokenRequest{Ttl: 600, AgentId: node})
	if err != nil {
		t.Fatal(err)
	}

	agent := server.Agent(t, token.GetValue())
	attest(t, agent)

	return agent
}

func TestVerifySPIRE(t *testing.T) { //nolint:tparallel // how often the server is asked is counted over all cases
	t.Parallel()

	server, stranger := spiretest.Start(t), spiretest.Start(t)
	clock := testclock.NewFakePassiveClock(time.Now())
	seen := &calls{}
	registry := open(t, server, func(o *spire.Options) { o.Clock, o.Observe = clock, seen.observe })
	claim := machine("claim-1")
	jwt := func(server *spiretest.Server, registry *spire.Registry, audience string) string {
		agent := server.Agent(t, register(t, registry, claim).JoinToken)
		attest(t, agent)

		return agent.JWT(t, audience)
	}

	good, forged := jwt(server, registry, "us"), jwt(stranger, open(t, stranger), "us")
	signature := good[strings.LastIndex(good, ".")+1:]
	other := agentOf(t, server, "/not/a/machine").JWT(t, "us")

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
				t.Errorf("the error holds the token: %v", err)
			}
		})
	}

	// However many come with keys that nobody knows, the server is asked once in a while.
	if asked := seen.count("GetBundle") - before; asked > 1 {
		t.Errorf("the keys were fetched %d times, want once", asked)
	}

	clock.SetTime(clock.Now().Add(10 * time.Second))

	_, _ = registry.Verify(t.Context(), forged, "us")

	if asked := seen.count("GetBundle") - before; asked != 2 {
		t.Errorf("the keys were fetched %d times for an unknown key, want twice", asked)
	}

	// Keys that cannot be looked after are not believed for ever.
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
		words  string
	}{
		"good":                       {func(*spire.Options) {}, ""},
		"trust domain with a scheme": {func(o *spire.Options) { o.TrustDomain = "spiffe://hyper fleet" }, "trust domain"},
		"no trust domain":            {func(o *spire.Options) { o.TrustDomain = "" }, "trust domain"},
		"relative socket":            {func(o *spire.Options) { o.Address = "unix://server.sock" }, "unix:///PATH"},
		"no port":                    {func(o *spire.Options) { o.Address = "spire" }, "HOST:PORT"},
		"TLS without own agent":      {func(o *spire.Options) { o.Address = "spire:8081" }, "needed with an address"},
		"machines' address":          {func(o *spire.Options) { o.MachineAddress = "spire" }, "for machines"},
		"selector":                   {func(o *spire.Options) { o.Selectors = []string{"unix"} }, "TYPE:VALUE"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			options := good
			tc.change(&options)

			_, err := spire.New(options)
			if (err == nil) != (tc.words == "") || (err != nil && !strings.Contains(err.Error(), tc.words)) {
				t.Errorf("new = %v, want %q", err, tc.words)
			}
		})
	}
}

// By its device identity a machine has a node entry, and no token.
func TestDeviceIdentitySPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	registry := open(t, server)
	claim := machine("claim-1")
	claim.Method = identity.TPM

	for range 2 {
		if given := register(t, registry, claim); given.JoinToken != "" || given.TrustBundle == "" {
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

	if got := server.Known(t); len(got) != 2 {
		t.Errorf("entries = %q", got)
	}

	if ids, err := registry.List(t.Context()); err != nil || !cmp.Equal(ids, []identity.ID{claim.ID}) {
		t.Errorf("list = %v, %v", ids, err)
	}

	if err := registry.Remove(t.Context(), claim.ID); err != nil {
		t.Fatal(err)
	}

	if got := server.Known(t); len(got) != 0 {
		t.Errorf("left = %q", got)
	}
}
