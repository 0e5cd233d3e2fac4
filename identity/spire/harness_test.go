// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire_test

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	agentv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/agent/v1"
	entryv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/entry/v1"
	"github.com/spiffe/spire-api-sdk/proto/spire/api/types"
	"google.golang.org/grpc/codes"

	spiretest "github.com/hyperfleet/hyperfleet/test/spire"
)

// plainMachine makes a token of a machine whose workload is this process.
func plainMachine(t *testing.T, server *spiretest.Server, path string) string {
	t.Helper()

	conn := server.Dial(t)
	id := &types.SPIFFEID{TrustDomain: server.TrustDomain, Path: path}

	entries, err := entryv1.NewEntryClient(conn).BatchCreateEntry(t.Context(), &entryv1.BatchCreateEntryRequest{
		Entries: []*types.Entry{{
			SpiffeId: id, ParentId: id, Selectors: []*types.Selector{{Type: "unix", Value: "uid:" + strconv.Itoa(os.Getuid())}},
		}},
	})
	if err != nil || entries.GetResults()[0].GetStatus().GetCode() != int32(codes.OK) {
		t.Fatalf("create entry: %v, %v", entries, err)
	}

	token, err := agentv1.NewAgentClient(conn).CreateJoinToken(t.Context(), &agentv1.CreateJoinTokenRequest{Ttl: 600, AgentId: id})
	if err != nil {
		t.Fatal(err)
	}

	return token.GetValue()
}

func TestMachineWithAPlainEntryAttests(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)
	token := plainMachine(t, server, "/vm/ns/claim/uid")

	// The data outlives the process.
	bundle := server.Bundle(t)
	server.Stop(t)
	server.Restart(t)

	if again := server.Bundle(t); again != bundle || !strings.Contains(bundle, "BEGIN CERTIFICATE") {
		t.Errorf("bundle after restart:\n%s\nbefore:\n%s", again, bundle)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	agent := server.Agent(t, token)

	svids, err := agent.SVIDs(ctx)
	if err != nil {
		t.Fatal(err)
	}

	if got, want := svids[0].ID.String(), "spiffe://hyperfleet.io/vm/ns/claim/uid"; got != want {
		t.Errorf("id = %s, want %s", got, want)
	}

	if token := agent.JWT(t, "somebody"); strings.Count(token, ".") != 2 {
		t.Errorf("JWT-SVID = %s", token)
	}

	var keys struct {
		Keys []map[string]any `json:"keys"`
	}
	if err := json.Unmarshal(server.JWKS(t), &keys); err != nil || len(keys.Keys) == 0 {
		t.Errorf("key set = %v, %v", keys, err)
	}
}

func TestTrustDomain(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t, spiretest.WithTrustDomain("example.org"))
	agent := server.Agent(t, plainMachine(t, server, "/vm/a/b/c"))

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	svids, err := agent.SVIDs(ctx)
	if err != nil {
		t.Fatal(err)
	}

	if got, want := svids[0].ID.String(), "spiffe://example.org/vm/a/b/c"; got != want {
		t.Errorf("id = %s, want %s", got, want)
	}
}
