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

// dying is a registry whose operator ends once it has registered a machine.
type dying struct {
	identity.Registry

	registered chan identity.Attestation
}

func (d *dying) Register(ctx context.Context, machine identity.Machine) (identity.Attestation, error) {
	out, err := d.Registry.Register(ctx, machine)
	if err != nil {
		return out, fmt.Errorf("register: %w", err)
	}

	d.registered <- out

	<-ctx.Done()

	return identity.Attestation{}, fmt.Errorf("register: %w", ctx.Err())
}

// An operator that ends between the registration and the cloud-init ISO leaves a token that is worth
// nothing, and the machine attests with another.
func operatorEndsBetweenRegistrationAndISO(t *testing.T, server *spiretest.Server) {
	t.Helper()

	a := attestation(t, server, v1alpha1.BootstrapRunnerToken, proves(t))
	registry := a.Identity
	dies := &dying{Registry: registry, registered: make(chan identity.Attestation, 1)}
	a.Identity = dies
	a.begin()
	a.EventuallyReady(a.template)

	claim := a.NewClaim("survivor")
	a.Create(claim)

	lost := <-dies.registered

	a.Stop()

	a.Identity = registry
	a.Start()
	a.EventuallyReady(claim)

	if got := a.left(); len(got) != 3 {
		t.Errorf("identities = %q, want alias, workload entry and agent", got)
	}

	if a.media[0].SPIFFE.JoinToken == lost.JoinToken {
		t.Error("the lost token is on the cloud-init ISO")
	}

	late := a.server.StartAgent(t, lost.JoinToken)

	a.Eventually("the lost token being refused", func() (bool, string) {
		return strings.Contains(late.Log(t), "does not exist or has already been used"), ""
	})

	remove(a.Fleet, claim)
	a.eventuallyForgotten()
}

// An identity whose claim was taken away by force is found and removed; another operator's is
// not.
func orphanedIdentities(t *testing.T, server *spiretest.Server) {
	t.Helper()

	a := attestation(t, server, v1alpha1.BootstrapRunnerToken, func(*attested, pve.GuestVM, guest.Config) {})
	a.Runners.OrphanInterval = 500 * time.Millisecond
	stranger := a.registry(t, "somebody else")
	machine := func(name string) identity.Machine {
		return identity.Machine{ID: identity.ID{Namespace: a.Namespace, Name: name, UID: "uid-" + name}, Method: identity.JoinToken}
	}

	if _, err := a.Identity.Register(t.Context(), machine("lost")); err != nil {
		t.Fatal(err)
	}

	if _, err := stranger.Register(t.Context(), machine("theirs")); err != nil {
		t.Fatal(err)
	}

	a.begin()
	a.Eventually("the lost identity being gone", func() (bool, string) {
		left := strings.Join(a.left(), ", ")

		return !strings.Contains(left, "/lost/"), left
	})

	if left := strings.Join(a.left(), ", "); strings.Count(left, "/theirs/") != 2 {
		t.Errorf("left = %s", left)
	}
}
