// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/identity/spire"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	spiretest "github.com/hyperfleet/hyperfleet/test/spire"
)

// A machine gets nothing by a claim code where an SVID is asked for, nor by the SVID of
// another machine; the claim that was asked for hears of both.
func onlyItsOwnSVID(t *testing.T, server *spiretest.Server) {
	t.Helper()

	first := make(chan string, 1)

	a := attestation(t, server, v1alpha1.BootstrapCallback, func(a *attested, vm pve.GuestVM, cfg guest.Config) {
		if strings.Contains(cfg.SPIFFE.SPIFFEID, "/owner/") {
			agent, err := a.attest(vm, cfg)
			if err != nil {
				t.Error(err)

				return
			}

			first <- agent.JWT(t, cfg.Callback.Audience)

			<-vm.Context.Done()

			return
		}

		cfg.Callback.Code = <-first
		fleet.Run(t, vm, cfg)
	})
	a.begin()
	a.EventuallyReady(a.template)
	a.Create(a.NewClaim("owner"))
	a.EventuallyEvent("Attested")

	thief := a.NewClaim("thief")
	a.Create(thief)
	a.EventuallyEvent("CredentialRefused")
	a.Eventually("the claim hearing of it", func() (bool, string) {
		events := strings.Join(a.Events(), "\n")

		return strings.Contains(events, "MachineClaim/thief: the SVID is of another machine: /vm/"+a.Namespace+"/owner/"), events
	})

	if made := a.GitHub.State().Registered; made != 0 {
		t.Errorf("%d credentials were made", made)
	}

	if err := a.Client.DeleteAllOf(t.Context(), &v1alpha1.MachineClaim{}, client.InNamespace(a.Namespace)); err != nil {
		t.Fatal(err)
	}

	a.eventuallyForgotten()
}

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

	late := a.server.Agent(t, lost.JoinToken)

	a.Eventually("the lost token being refused", func() (bool, string) {
		return strings.Contains(late.Log(t), "does not exist or has already been used"), ""
	})

	a.delete(claim)

	a.eventuallyForgotten()
}

// An identity whose claim was taken away by force is found and removed; another operator's is
// not.
func orphanedIdentities(t *testing.T, server *spiretest.Server) {
	t.Helper()

	a := attestation(t, server, v1alpha1.BootstrapRunnerToken, func(*attested, pve.GuestVM, guest.Config) {})
	a.Runners.OrphanInterval = 500 * time.Millisecond
	stranger := a.registry(t, func(o *spire.Options) { o.OperatorUID = "somebody else" })
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

// The token is on the cloud-init ISO and nowhere else.
func theTokenIsOnTheISOAlone(t *testing.T, server *spiretest.Server) {
	t.Helper()

	a := attestation(t, server, v1alpha1.BootstrapRunnerToken, func(_ *attested, vm pve.GuestVM, _ guest.Config) { <-vm.Context.Done() })
	a.begin()
	a.EventuallyReady(a.template)

	claim := a.NewClaim("waits")
	a.Create(claim)
	a.EventuallyCondition(claim, v1alpha1.ConditionAttested, metav1.ConditionFalse, "WaitingForAttestation")
	a.Eventually("the machine running", func() (bool, string) {
		a.mu.Lock()
		defer a.mu.Unlock()

		return len(a.media) == 1, ""
	})

	token := []byte(a.media[0].SPIFFE.JoinToken)
	if bytes.Contains([]byte(a.Describe()+fmt.Sprintf("%+v", claim.Status)+strings.Join(a.Events(), "\n")), token) {
		t.Error("status, conditions or events hold the token")
	}

	for _, vm := range a.PVE.Snapshot().VMs {
		if bytes.Contains(fmt.Append(nil, vm.Config), token) {
			t.Errorf("the configuration of VM %d holds the token", vm.VMID)
		}
	}

	a.delete(claim)

	a.eventuallyForgotten()
}
