// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	entryv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/entry/v1"
	"github.com/spiffe/spire-api-sdk/proto/spire/api/types"

	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/identity/spire"
	spiretest "github.com/hyperfleet/hyperfleet/test/spire"
)

// mortal makes a registry whose operator ends after so many calls: what it is asked for then
// fails. The context is that of its life.
func mortal(t *testing.T, server *spiretest.Server, calls int) (context.Context, *spire.Registry) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)

	if calls == 0 {
		cancel()
	}

	var made atomic.Int64 // a stream's end is told of by another goroutine

	return ctx, open(t, server, func(o *spire.Options) {
		o.Observe = func(string, time.Duration, error) {
			if made.Add(1) == int64(calls) {
				cancel()
			}
		}
	})
}

// worth counts the machine's join tokens that are worth its identity: those with an alias.
func worth(t *testing.T, server *spiretest.Server, id identity.ID) int {
	t.Helper()

	entries, err := entryv1.NewEntryClient(server.Dial(t)).ListEntries(t.Context(), &entryv1.ListEntriesRequest{
		Filter: &entryv1.ListEntriesRequest_Filter{BySpiffeId: &types.SPIFFEID{TrustDomain: server.TrustDomain, Path: id.Path()}},
	})
	if err != nil {
		t.Fatal(err)
	}

	aliases := 0

	for _, entry := range entries.GetEntries() {
		if strings.HasPrefix(entry.GetParentId().GetPath(), "/spire/agent/join_token/") {
			aliases++
		}
	}

	return aliases
}

// most is more calls than any operation makes.
const most = 16

// An operator that ends after any of its calls leaves what its successor finds: never two
// tokens worth anything, nothing that the sweep does not list, and in the end nothing.
func TestOperatorEndsAfterAnyCallSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)

	for calls := range most {
		for _, method := range []string{identity.JoinToken, identity.TPM} {
			claim := machine(fmt.Sprintf("%s-%d", method, calls))
			claim.Method = method

			// Once for a machine that nobody knows, once for one that is known.
			for range 2 {
				ctx, registry := mortal(t, server, calls)
				_, _ = registry.Register(ctx, claim)

				if tokens := worth(t, server, claim.ID); tokens > 1 {
					t.Fatalf("%s after %d calls: %d tokens are worth something", method, calls, tokens)
				}
			}

			successor := open(t, server)
			given := register(t, successor, claim)

			if tokens := worth(t, server, claim.ID); (method == identity.JoinToken) != (tokens == 1 && given.JoinToken != "") {
				t.Errorf("%s after %d calls: %d tokens are worth something", method, calls, tokens)
			}

			ctx, registry := mortal(t, server, calls)
			if err := registry.Remove(ctx, claim.ID); err != nil {
				checkListed(t, server, successor, claim.ID)
			}

			if err := successor.Remove(t.Context(), claim.ID); err != nil {
				t.Fatal(err)
			}

			if got := server.Known(t); len(got) != 0 {
				t.Fatalf("%s after %d calls: left %q", method, calls, got)
			}
		}
	}
}

// checkListed says that a machine of which anything is left is in the list.
func checkListed(t *testing.T, server *spiretest.Server, registry *spire.Registry, id identity.ID) {
	t.Helper()

	ids, err := registry.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	if got := server.Known(t); len(got) > 0 && len(ids) != 1 {
		t.Errorf("left of %s: %q, but listed is %v", id.Path(), got, ids)
	}
}
