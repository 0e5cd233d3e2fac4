// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	identityspire "github.com/hyperfleet/hyperfleet/identity/spire"
	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// useThief makes machines run this test's own program. It uses the machine's join token first, and then
// becomes bootstrap-service.
func useThief(t *testing.T) func(*fixture, *pve.Model) {
	t.Helper()

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	return func(w *fixture, m *pve.Model) {
		m.Guest.Program = self

		if err := os.WriteFile(filepath.Join(w.image, "service"), []byte(filepath.Join(programs, "bootstrap-service")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// testFinalizer keeps a claim, so that the test can read how it ended.
const testFinalizer = "test.hyperfleet.io/look"

// runThief is the program of such a machine. It has the arguments of bootstrap-service.
func runThief(args []string) int {
	service, err := os.ReadFile(filepath.Join(args[3], "service"))
	if err == nil {
		err = useToken(args[1], args[3])
	}

	if err != nil {
		panic(err)
	}

	panic(syscall.Exec(string(service), append([]string{string(service)}, args...), []string{}))
}

// useToken attests with the machine's token, as an attacker would who has read it.
func useToken(config, root string) error {
	var cfg guest.Config

	data, err := os.ReadFile(config)
	if err == nil {
		err = json.Unmarshal(data, &cfg)
	}

	if err != nil {
		return err
	}

	dir := filepath.Join(root, "thief")
	host, port, err := net.SplitHostPort(cfg.SPIFFE.ServerAddress)

	text := fmt.Sprintf("agent {\ndata_dir = %q\ntrust_domain = %q\nserver_address = %q\nserver_port = %q\nsocket_path = %q\n"+
		"trust_bundle_path = %q\njoin_token = %q\n}\nplugins {\nNodeAttestor \"join_token\" { plugin_data {} }\n"+
		"KeyManager \"memory\" { plugin_data {} }\nWorkloadAttestor \"unix\" { plugin_data {} }\n}\n",
		dir, cfg.SPIFFE.TrustDomain, host, port, filepath.Join(dir, "s"), filepath.Join(dir, "bundle.pem"), cfg.SPIFFE.JoinToken)

	if err := errors.Join(err, os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "agent.conf"), []byte(text), 0o600),
		os.WriteFile(filepath.Join(dir, "bundle.pem"), []byte(cfg.SPIFFE.TrustBundle), 0o600)); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	agent := exec.CommandContext(ctx, filepath.Join(root, guest.AgentPath), "run", "-config", filepath.Join(dir, "agent.conf"))
	if err := agent.Start(); err != nil {
		return err
	}

	for ctx.Err() == nil { // the agent creates its socket after the attestation
		if _, err := os.Stat(filepath.Join(dir, "s")); err == nil {
			break
		}

		time.Sleep(20 * time.Millisecond)
	}

	_ = agent.Process.Kill()
	_ = agent.Wait()

	return ctx.Err()
}

// TestFailures runs complete lifecycles of machines that get no identity or no credential. The claim has the
// reason, the VM is deleted, and no credential was issued. Package guest tests other failures in machines, and
// test/fleet tests the operator's reaction to each reason.
func TestFailures(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		change    func(*testing.T, *settings)
		others    bool // the credential is a secret of another team
		timeout   time.Duration
		condition string
		reason    string
	}{
		"no SPIRE server where machines look for it": {
			change: func(_ *testing.T, s *settings) {
				s.registry = func(o *identityspire.Options) { o.MachineAddress = "127.0.0.1:1" }
			},
			timeout: 5 * time.Second, condition: v1alpha1.ConditionAttested, reason: guest.ReasonAttestationTimeout,
		},
		// The SPIRE server has seen the thief's attestation, and the operator may have read it. So either
		// condition may have the reason.
		"a token that was used before": {
			change: func(t *testing.T, s *settings) { t.Helper(); s.model = useThief(t) },
			reason: guest.ReasonAttestationRefused,
		},
		"a secret of another team": {others: true, condition: v1alpha1.ConditionBootstrapped, reason: guest.ReasonSecretsRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var change settings
			if tc.change != nil {
				tc.change(t, &change)
			}

			w := newFixture(t, map[bool]string{false: v1alpha1.BootstrapCallback, true: v1alpha1.BootstrapExternalSecrets}[tc.others], change)
			if tc.others {
				w.useVault(guest.SecretsAuthCert, "others/token")
				w.template.Spec.Bootstrap.Config.ExternalSecrets.Path = "secret/data/others/token"
			}

			w.createAndStart()

			claim := w.NewClaim("failing")
			claim.Finalizers = []string{testFinalizer}

			if tc.timeout != 0 {
				claim.Spec.Lifecycle = &v1alpha1.Lifecycle{BootstrapTimeout: &metav1.Duration{Duration: tc.timeout}}
			}

			w.Create(claim)
			w.waitForFailure(claim, tc.condition, tc.reason)
		})
	}
}

// waitForFailure waits until a claim has ended with the reason. Its VM must be deleted, and no credential
// issued.
func (w *fixture) waitForFailure(claim *v1alpha1.MachineClaim, condition, reason string) {
	w.T.Helper()
	w.Eventually(claim.Name+" has ended with "+reason, func() (bool, string) {
		if err := w.Client.Get(w.T.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			return false, err.Error()
		}

		return claim.Status.EndReason == reason, claim.Status.EndReason
	})

	if condition != "" {
		w.EventuallyCondition(claim, condition, metav1.ConditionFalse, reason)
	}

	w.Eventually("the VM is deleted", func() (bool, string) {
		left := strings.Join(w.FindLeftovers(), ", ")

		return !strings.Contains(left, "VM ") && !strings.Contains(left, "cloud-init ISO"), left
	})

	w.Eventually("the claim has no other finalizer", func() (bool, string) {
		if err := w.Client.Get(w.T.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			return false, err.Error()
		}

		return slices.Equal(claim.Finalizers, []string{testFinalizer}), strings.Join(claim.Finalizers, ", ")
	})

	if claim.Status.EndReason != reason {
		w.T.Errorf("the claim ended with %s, want %s", claim.Status.EndReason, reason)
	}

	if made := w.GitHub.State().Registered; made != 0 {
		w.T.Errorf("%d credentials were issued", made)
	}

	claim.Finalizers = nil
	if err := w.Client.Update(w.T.Context(), claim); err != nil {
		w.T.Fatal(err)
	}

	w.waitForCleanup()
}
