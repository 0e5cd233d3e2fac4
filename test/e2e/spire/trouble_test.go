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
	"github.com/hyperfleet/hyperfleet/test/spire"
)

// troubled has machines run this test's own program, which makes trouble of a kind and then
// becomes bootstrap-service.
func troubled(t *testing.T, kind string) func(*world, *pve.Model) {
	t.Helper()

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	return func(w *world, m *pve.Model) {
		m.Guest.Program = self
		text := kind + "\n" + filepath.Join(programs, "bootstrap-service") + "\n" + w.vms

		if err := os.WriteFile(filepath.Join(w.image, "trouble"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// look keeps a claim, so that the test sees how it ended.
const look = "test.hyperfleet.io/look"

// Kinds of trouble.
const (
	troubleReplay  = "the join token is used before"
	troubleAnother = "the machine shows its SVID for another claim"
)

// trouble is the program of such a machine; it has the arguments of bootstrap-service.
func trouble(args []string) int {
	text, err := os.ReadFile(filepath.Join(args[3], "trouble"))
	if err != nil {
		panic(err)
	}

	lines := strings.Split(string(text), "\n")

	switch lines[0] {
	case troubleReplay:
		err = useToken(args[1], args[3])
	case troubleAnother:
		err = askForAnother(args[1], lines[2])
	}

	if err != nil {
		panic(err)
	}

	panic(syscall.Exec(lines[1], append([]string{lines[1]}, args...), []string{}))
}

func readConfig(file string) (guest.Config, error) {
	var cfg guest.Config

	data, err := os.ReadFile(file)
	if err != nil {
		return cfg, err
	}

	err = json.Unmarshal(data, &cfg)

	return cfg, err
}

// useToken attests with the machine's token, as somebody does who has read it.
func useToken(config, root string) error {
	cfg, err := readConfig(config)
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

	for ctx.Err() == nil { // the socket is there when it has attested
		if _, err := os.Stat(filepath.Join(dir, "s")); err == nil {
			break
		}

		time.Sleep(20 * time.Millisecond)
	}

	_ = agent.Process.Kill()
	_ = agent.Wait()

	return ctx.Err()
}

// askForAnother has the thief's machine ask for the owner's credential. The owner's machine
// leaves its address, and does nothing.
func askForAnother(config, shared string) error {
	cfg, err := readConfig(config)
	if err != nil {
		return err
	}

	address := filepath.Join(shared, "address")

	if strings.Contains(cfg.SPIFFE.SPIFFEID, "/owner/") {
		if err := os.WriteFile(address+".new", []byte(cfg.Callback.URL), 0o600); err != nil {
			return err
		}

		if err := os.Rename(address+".new", address); err != nil {
			return err
		}

		time.Sleep(time.Hour) // until it is stopped

		return nil
	}

	for {
		if text, err := os.ReadFile(address); err == nil {
			cfg.Callback.URL = string(text)

			break
		}

		time.Sleep(20 * time.Millisecond)
	}

	data, err := json.Marshal(cfg)
	if err != nil {
		return err
	}

	return os.WriteFile(config, data, 0o600)
}

// TestTrouble has one case for each way in which a machine has no identity or no credential:
// the claim says why, the VM is gone, and nothing was handed out.
func TestTrouble(t *testing.T) {
	t.Parallel()

	other := spire.Start(t, spire.WithTrustDomain("example.org"))

	for name, tc := range map[string]struct {
		method    string
		change    func(*testing.T, *settings)
		prepare   func(*testing.T, *world)
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
		"a server of another trust domain": {
			change: func(_ *testing.T, s *settings) {
				s.registry = func(o *identityspire.Options) { o.MachineAddress = other.Address }
			},
			condition: v1alpha1.ConditionAttested, reason: guest.ReasonTrustDomainMismatch,
		},
		// The SPIRE server has seen a machine attest, the thief's, and the operator may have
		// asked it: either condition may tell.
		"a token that was used before": {
			change: func(t *testing.T, s *settings) { t.Helper(); s.model = troubled(t, troubleReplay) },
			reason: guest.ReasonAttestationRefused,
		},
		"an image without spire-agent": {
			prepare: func(t *testing.T, w *world) {
				t.Helper()

				if err := os.Remove(filepath.Join(w.image, guest.AgentPath)); err != nil {
					t.Fatal(err)
				}
			},
			condition: v1alpha1.ConditionAttested, reason: guest.ReasonAttestationUnavailable,
		},
		"no secret": {
			method:    v1alpha1.BootstrapExternalSecrets,
			prepare:   func(t *testing.T, w *world) { t.Helper(); w.useVault(guest.SecretsAuthJWT, "") },
			condition: v1alpha1.ConditionBootstrapped, reason: guest.ReasonSecretMissing,
		},
		"a secret of others": {
			method: v1alpha1.BootstrapExternalSecrets,
			prepare: func(t *testing.T, w *world) {
				t.Helper()
				w.useVault(guest.SecretsAuthCert, "others/token")
				w.template.Spec.Bootstrap.Config.ExternalSecrets.Path = "secret/data/others/token"
			},
			condition: v1alpha1.ConditionBootstrapped, reason: guest.ReasonSecretsRefused,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var change settings
			if tc.change != nil {
				tc.change(t, &change)
			}

			method := v1alpha1.BootstrapCallback
			if tc.method != "" {
				method = tc.method
			}

			w := newWorld(t, method, change)
			if tc.prepare != nil {
				tc.prepare(t, w)
			}

			w.begin()

			claim := w.NewClaim("troubled")
			claim.Finalizers = []string{look}

			if tc.timeout != 0 {
				claim.Spec.Lifecycle = &v1alpha1.Lifecycle{BootstrapTimeout: &metav1.Duration{Duration: tc.timeout}}
			}

			w.Create(claim)
			w.ends(claim, tc.condition, tc.reason)
		})
	}
}

// ends waits for a claim's end: its reason, its VM gone, and nothing handed out.
func (w *world) ends(claim *v1alpha1.MachineClaim, condition, reason string) {
	w.T.Helper()
	w.eventuallyEnded(claim, reason)

	if condition != "" {
		w.EventuallyCondition(claim, condition, metav1.ConditionFalse, reason)
	}

	w.Eventually("the VM being gone", func() (bool, string) {
		left := strings.Join(w.Leftovers(), ", ")

		return !strings.Contains(left, "VM ") && !strings.Contains(left, "cloud-init ISO"), left
	})

	w.Eventually("the claim being done with", func() (bool, string) {
		if err := w.Client.Get(w.T.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			return false, err.Error()
		}

		return slices.Equal(claim.Finalizers, []string{look}), strings.Join(claim.Finalizers, ", ")
	})

	if claim.Status.EndReason != reason {
		w.T.Errorf("the claim ended for %s, want %s", claim.Status.EndReason, reason)
	}

	if made := w.GitHub.State().Registered; made != 0 {
		w.T.Errorf("%d credentials were made", made)
	}

	claim.Finalizers = nil
	if err := w.Client.Update(w.T.Context(), claim); err != nil {
		w.T.Fatal(err)
	}

	w.eventuallyForgotten()
}

// eventuallyEnded waits until it is on record why a claim's machine ended.
func (w *world) eventuallyEnded(claim *v1alpha1.MachineClaim, reason string) {
	w.T.Helper()
	w.Eventually(claim.Name+" ending for "+reason, func() (bool, string) {
		if err := w.Client.Get(w.T.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			return false, err.Error()
		}

		return claim.Status.EndReason == reason, claim.Status.EndReason
	})
}

// TestSVIDOfAnotherMachine: a machine with an identity of its own gets no other's credential.
func TestSVIDOfAnotherMachine(t *testing.T) {
	t.Parallel()

	w := newWorld(t, v1alpha1.BootstrapCallback, settings{model: troubled(t, troubleAnother)})
	w.begin()

	owner, thief := w.NewClaim("owner"), w.NewClaim("thief")
	thief.Finalizers = []string{look}

	w.Create(owner)
	w.Create(thief)
	w.eventuallyEnded(thief, guest.ReasonIdentityMismatch)

	if err := w.Client.Delete(t.Context(), owner); err != nil {
		t.Fatal(err)
	}

	w.ends(thief, "", guest.ReasonIdentityMismatch)
}
