// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	spiretest "github.com/hyperfleet/hyperfleet/test/spire"
)

// blockingRegistry is a registry that registers a machine, and then blocks until its operator stops.
type blockingRegistry struct {
	identity.Registry

	registered chan identity.Attestation
}

// Register registers the machine, and returns an error when the operator stops.
func (d *blockingRegistry) Register(ctx context.Context, machine identity.Machine) (identity.Attestation, error) {
	out, err := d.Registry.Register(ctx, machine)
	if err != nil {
		return out, fmt.Errorf("register: %w", err)
	}

	d.registered <- out

	<-ctx.Done()

	return identity.Attestation{}, fmt.Errorf("register: %w", ctx.Err())
}

// testOperatorStopsAfterRegistration checks that the join token of an operator that stops between registration and
// cloud-init ISO becomes useless, and that the machine attests with another token.
func testOperatorStopsAfterRegistration(t *testing.T, server *spiretest.Server) {
	t.Helper()

	a := newAttestedFleet(t, server, v1alpha1.BootstrapRunnerToken, attestAndRunJob(t))
	registry := a.Identity
	blocking := &blockingRegistry{Registry: registry, registered: make(chan identity.Attestation, 1)}
	a.Identity = blocking
	a.startWithPool()
	a.EventuallyReady(a.template)

	claim := a.NewClaim("survivor")
	a.Create(claim)

	lost := <-blocking.registered

	a.Stop()

	a.Identity = registry
	a.Start()
	a.EventuallyReady(claim)

	if got := a.findIdentities(); len(got) != 3 {
		t.Errorf("identities: %q, want alias, workload entry and agent", got)
	}

	if a.configs[0].SPIFFE.JoinToken == lost.JoinToken {
		t.Error("the lost token is on the cloud-init ISO")
	}

	late := a.server.StartAgent(t, lost.JoinToken)

	a.Eventually("the lost token being rejected", func() (bool, string) {
		return strings.Contains(late.Log(t), "does not exist or has already been used"), ""
	})

	deleteObject(a.Fleet, claim)
	a.eventuallyNoIdentities()
}

// testOrphanedIdentities checks that an identity whose claim was deleted by force is removed, and that another
// operator's identity is not.
func testOrphanedIdentities(t *testing.T, server *spiretest.Server) {
	t.Helper()

	a := newAttestedFleet(t, server, v1alpha1.BootstrapRunnerToken, func(*attestedFleet, pve.GuestVM, guest.Config) {})
	a.Runners.OrphanInterval = 500 * time.Millisecond
	other := a.newRegistry(t, "other operator")
	machine := func(name string) identity.Machine {
		return identity.Machine{ID: identity.ID{Namespace: a.Namespace, Name: name, UID: "uid-" + name}, Method: identity.JoinToken}
	}

	if _, err := a.Identity.Register(t.Context(), machine("lost")); err != nil {
		t.Fatal(err)
	}

	if _, err := other.Register(t.Context(), machine("theirs")); err != nil {
		t.Fatal(err)
	}

	a.startWithPool()
	a.Eventually("the lost identity being removed", func() (bool, string) {
		left := strings.Join(a.findIdentities(), ", ")

		return !strings.Contains(left, "/lost/"), left
	})

	if left := strings.Join(a.findIdentities(), ", "); strings.Count(left, "/theirs/") != 2 {
		t.Errorf("identities: %s, want both of the other operator", left)
	}
}
