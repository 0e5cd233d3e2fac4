// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	agentv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/agent/v1"
	bundlev1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/bundle/v1"
	entryv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/entry/v1"
	"github.com/spiffe/spire-api-sdk/proto/spire/api/types"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/identity/spire"
)

// pagedServer is a SPIRE server whose first page of agents is empty. A real server returns such a page if none of the
// agents of the page has the selectors of the filter.
type pagedServer struct {
	agentv1.UnimplementedAgentServer
	entryv1.UnimplementedEntryServer

	evicted []string
}

func (*pagedServer) ListAgents(_ context.Context, request *agentv1.ListAgentsRequest) (*agentv1.ListAgentsResponse, error) {
	if request.GetPageToken() == "" {
		return &agentv1.ListAgentsResponse{NextPageToken: "2"}, nil
	}

	return &agentv1.ListAgentsResponse{Agents: []*types.Agent{
		{Id: &types.SPIFFEID{TrustDomain: "hyperfleet.io", Path: "/spire/agent/tpm_devid/1"}},
	}}, nil
}

func (s *pagedServer) DeleteAgent(_ context.Context, request *agentv1.DeleteAgentRequest) (*emptypb.Empty, error) {
	s.evicted = append(s.evicted, request.GetId().GetPath())

	return &emptypb.Empty{}, nil
}

func (*pagedServer) ListEntries(context.Context, *entryv1.ListEntriesRequest) (*entryv1.ListEntriesResponse, error) {
	return &entryv1.ListEntriesResponse{}, nil
}

func (*pagedServer) BatchDeleteEntry(
	context.Context, *entryv1.BatchDeleteEntryRequest,
) (*entryv1.BatchDeleteEntryResponse, error) {
	return &entryv1.BatchDeleteEntryResponse{}, nil
}

// connectTo starts a server and returns a registry that is connected to it.
func connectTo(t *testing.T, register func(*grpc.Server)) *spire.Registry {
	t.Helper()

	socket := filepath.Join(t.TempDir(), "server.sock")

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}

	server := grpc.NewServer()
	register(server)

	go server.Serve(listener)
	t.Cleanup(server.Stop)

	registry, err := spire.New(spire.Options{
		Address: "unix://" + socket, TrustDomain: "hyperfleet.io", MachineAddress: "spire:8081", OperatorUID: "uid",
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = registry.Close() })

	return registry
}

// TestAgentsOnLaterPages checks that an agent on the second page counts as attested, and is evicted.
func TestAgentsOnLaterPages(t *testing.T) {
	t.Parallel()

	paged := &pagedServer{}
	registry := connectTo(t, func(server *grpc.Server) {
		agentv1.RegisterAgentServer(server, paged)
		entryv1.RegisterEntryServer(server, paged)
	})

	id := newMachine("claim-1").ID

	if attested, err := registry.HasAttested(t.Context(), id); !attested || err != nil {
		t.Errorf("attested = %v, %v", attested, err)
	}

	if err := registry.Unregister(t.Context(), id); err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff([]string{"/spire/agent/tpm_devid/1"}, paged.evicted); diff != "" {
		t.Errorf("evicted agents (-want +got):\n%s", diff)
	}
}

// tokenServer is a SPIRE server that records the lifetimes of join tokens.
type tokenServer struct {
	pagedServer
	bundlev1.UnimplementedBundleServer

	lifetimes []int32
}

func (*tokenServer) GetBundle(context.Context, *bundlev1.GetBundleRequest) (*types.Bundle, error) {
	return &types.Bundle{TrustDomain: "hyperfleet.io"}, nil
}

func (*tokenServer) BatchCreateEntry(
	_ context.Context, request *entryv1.BatchCreateEntryRequest,
) (*entryv1.BatchCreateEntryResponse, error) {
	out := &entryv1.BatchCreateEntryResponse{}
	for _, entry := range request.GetEntries() {
		out.Results = append(out.Results, &entryv1.BatchCreateEntryResponse_Result{Status: &types.Status{}, Entry: entry})
	}

	return out, nil
}

func (s *tokenServer) CreateJoinToken(_ context.Context, request *agentv1.CreateJoinTokenRequest) (*types.JoinToken, error) {
	s.lifetimes = append(s.lifetimes, request.GetTtl())

	return &types.JoinToken{Value: "token"}, nil
}

// TestLifetimeOfJoinTokens checks that a join token lives as long as the template says, and an hour otherwise.
func TestLifetimeOfJoinTokens(t *testing.T) {
	t.Parallel()

	tokens := &tokenServer{}
	registry := connectTo(t, func(server *grpc.Server) {
		agentv1.RegisterAgentServer(server, tokens)
		entryv1.RegisterEntryServer(server, tokens)
		bundlev1.RegisterBundleServer(server, tokens)
	})

	for _, ttl := range []time.Duration{0, 90 * time.Second, 2 * time.Hour} {
		machine := newMachine("claim-1")
		machine.Method, machine.TTL = identity.JoinToken, ttl

		if _, err := registry.Register(t.Context(), machine); err != nil {
			t.Fatal(err)
		}
	}

	if diff := cmp.Diff([]int32{3600, 90, 7200}, tokens.lifetimes); diff != "" {
		t.Errorf("lifetimes in seconds (-want +got):\n%s", diff)
	}
}
