// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	agentv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/agent/v1"
	entryv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/entry/v1"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity/spire"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	spiretest "github.com/hyperfleet/hyperfleet/test/spire"
)

// attestedFleet is a fleet with a SPIRE server. The test process simulates its machines: it runs their SPIRE
// agents, and is the workload that the agents attest.
type attestedFleet struct {
	*fleet.Fleet

	server   *spiretest.Server
	template *v1alpha1.HypervisorMachineTemplate

	// dial returns the connection to the server that findIdentities uses.
	dial func() *grpc.ClientConn

	mu      sync.Mutex
	configs []guest.Config
}

// newAttestedFleet creates a fleet that uses the SPIRE server. Several fleets may share the server. act is what a
// machine does with its configuration.
func newAttestedFleet(
	t *testing.T, server *spiretest.Server, method string, act func(a *attestedFleet, vm pve.GuestVM, cfg guest.Config),
) *attestedFleet {
	t.Helper()

	a := &attestedFleet{server: server, dial: sync.OnceValue(func() *grpc.ClientConn { return server.Dial(t) })}

	model := fleet.Model()
	model.Guest.Script = func(vm pve.GuestVM) {
		cfg, err := fleet.ReadGuestConfig(vm.Drive)
		if err != nil || cfg.SPIFFE == nil {
			t.Errorf("read configuration: %v; spiffe %v", err, cfg.SPIFFE)

			return
		}

		a.mu.Lock()
		a.configs = append(a.configs, cfg)
		a.mu.Unlock()

		fleet.SendReport(vm.Context, cfg, guest.Report{Phase: guest.PhaseAttesting, Time: time.Now()})
		act(a, vm, cfg)
	}

	a.Fleet = fleet.New(t, env, fleet.Options{Model: model})
	a.Identity, a.TrustDomain = a.newRegistry(t, t.Name()), spiretest.DefaultTrustDomain
	a.template = a.NewTemplate()
	a.template.Spec.Attestation = &v1alpha1.Attestation{Method: v1alpha1.AttestationJoinToken}
	a.template.Spec.Bootstrap.Method = method

	a.CreateCluster(a.NewCluster())

	return a
}

// newRegistry connects to the SPIRE server as the operator with this UID.
func (a *attestedFleet) newRegistry(t *testing.T, operator string) *spire.Registry {
	t.Helper()

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	registry, err := spire.New(spire.Options{
		Address: "unix://" + a.server.Socket, TrustDomain: a.server.TrustDomain, MachineAddress: a.server.Address,
		OperatorUID: operator, Selectors: []string{"unix:uid:" + strconv.Itoa(os.Getuid()), "unix:path:" + self},
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = registry.Close() })

	return registry
}

// startWithPool creates the template and a pool, and starts the operator.
func (a *attestedFleet) startWithPool() {
	a.T.Helper()
	a.Create(a.template)
	a.Create(a.NewPool(1))
	a.Start()
}

// attest runs the machine's SPIRE agent with the settings of its cloud-init ISO, and returns the agent when it has
// the machine's SVID.
func (a *attestedFleet) attest(vm pve.GuestVM, cfg guest.Config) (*spiretest.Agent, error) {
	agent := a.server.StartAgent(a.T, cfg.SPIFFE.JoinToken,
		spiretest.WithBundle(cfg.SPIFFE.TrustBundle), spiretest.WithServerAddress(cfg.SPIFFE.ServerAddress))

	ctx, cancel := context.WithTimeout(vm.Context, time.Minute)
	defer cancel()

	svids, err := agent.WaitForSVIDs(ctx)
	if err != nil {
		return nil, fmt.Errorf("attest: %w", err)
	}

	if got := svids[0].ID.String(); got != cfg.SPIFFE.SPIFFEID {
		return nil, fmt.Errorf("attest: the SVID is of %s, want %s", got, cfg.SPIFFE.SPIFFEID)
	}

	fleet.SendReport(vm.Context, cfg, guest.Report{Phase: guest.PhaseAttested, Time: time.Now()})

	return agent, nil
}

// findIdentities returns what the SPIRE server has of the fleet: entries, and agents whose join token was on a
// cloud-init ISO.
func (a *attestedFleet) findIdentities() []string {
	a.T.Helper()

	conn := a.dial()

	entries, err := entryv1.NewEntryClient(conn).ListEntries(a.T.Context(), &entryv1.ListEntriesRequest{})
	if err != nil {
		a.T.Fatal(err)
	}

	agents, err := agentv1.NewAgentClient(conn).ListAgents(a.T.Context(), &agentv1.ListAgentsRequest{})
	if err != nil {
		a.T.Fatal(err)
	}

	var out []string
	for _, entry := range entries.GetEntries() {
		if path := entry.GetSpiffeId().GetPath(); strings.Contains(path, "/"+a.Namespace+"/") {
			out = append(out, "entry "+path)
		}
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	for _, agent := range agents.GetAgents() {
		path := agent.GetId().GetPath()
		if slices.ContainsFunc(a.configs, func(cfg guest.Config) bool { return strings.HasSuffix(path, "/"+cfg.SPIFFE.JoinToken) }) {
			out = append(out, "agent "+path)
		}
	}

	return out
}

// removeFinalizers removes the test's finalizer from a claim when it is the only one left.
func (a *attestedFleet) removeFinalizers(claim *v1alpha1.MachineClaim) {
	a.T.Helper()
	a.Eventually("the operator removing its finalizers from claim "+claim.Name, func() (bool, string) {
		if err := a.Client.Get(a.T.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			return false, err.Error()
		}

		if len(claim.Finalizers) > 1 {
			return false, strings.Join(claim.Finalizers, ", ")
		}

		claim.Finalizers = nil

		return a.Client.Update(a.T.Context(), claim) == nil, "conflict"
	})
}

// eventuallyNoIdentities waits until nothing is left of the fleet, not even on the SPIRE server.
func (a *attestedFleet) eventuallyNoIdentities() {
	a.T.Helper()
	a.EventuallyClean()
	a.Eventually("all identities being removed", func() (bool, string) {
		left := a.findIdentities()

		return len(left) == 0, strings.Join(left, ", ")
	})
}

// TestMachinesAttestToSPIRE checks fleets that share a SPIRE server.
func TestMachinesAttestToSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)

	for name, test := range map[string]func(*testing.T, *spiretest.Server){
		"jobs run": testAttestedJobs, "rejected machines": testRefusedMachines, "orphans": testOrphanedIdentities,
		"the operator ends": testOperatorStopsAfterRegistration,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, server)
		})
	}
}

// testAttestedJobs checks that a machine attests, gets its credential by each method, runs its job, and leaves
// nothing behind.
func testAttestedJobs(t *testing.T, server *spiretest.Server) {
	t.Helper()

	for _, method := range []string{v1alpha1.BootstrapRunnerToken, v1alpha1.BootstrapCallback} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()

			var replayed int

			a := newAttestedFleet(t, server, method, func(a *attestedFleet, vm pve.GuestVM, cfg guest.Config) {
				a.checkTokenNotStored(cfg.SPIFFE.JoinToken)

				agent, err := a.attest(vm, cfg)
				if err != nil {
					t.Error(err)

					return
				}

				if cfg.Callback != nil {
					to := *cfg.Callback
					cfg.Callback = &to
					cfg.Callback.Code = agent.FetchJWT(t, cfg.Callback.Audience)
				}

				fleet.RunGuest(t, vm, cfg)

				if cfg.Callback != nil {
					replayed = postCallback(t, cfg)
				}
			})
			a.startWithPool()
			a.EventuallyReady(a.template)
			queueJobs(a.Fleet, 1)
			a.EventuallyEvent("Attested")
			a.EventuallyJobsDone(1)
			a.eventuallyNoIdentities()

			medium := a.configs[0]
			if len(a.configs) != 1 || medium.SPIFFE.JoinToken == "" || medium.SPIFFE.TrustDomain != "hyperfleet.io" {
				t.Errorf("%d cloud-init ISOs, SPIFFE settings %+v", len(a.configs), medium.SPIFFE)
			}

			if method == v1alpha1.BootstrapCallback {
				if medium.Callback.Code != "" || medium.Callback.Audience == "" || medium.JITConfig != "" {
					t.Errorf("callback on the cloud-init ISO = %+v", medium.Callback)
				}

				if replayed != http.StatusConflict && replayed != http.StatusGone {
					t.Errorf("second request with the same SVID: status %d, want 409 or 410", replayed)
				}
			}

			if strings.Contains(strings.Join(a.Events(), "\n"), medium.SPIFFE.JoinToken) {
				t.Error("an event contains the join token")
			}
		})
	}
}

// checkTokenNotStored fails the test if the machine's join token is stored outside its cloud-init ISO.
func (a *attestedFleet) checkTokenNotStored(token string) {
	for _, claim := range listClaims(a.Fleet) {
		if strings.Contains(fmt.Sprintf("%+v", claim.Status), token) {
			a.T.Error("the status contains the join token")
		}
	}

	for _, vm := range a.PVE.Snapshot().VMs {
		if strings.Contains(fmt.Sprint(vm.Config), token) {
			a.T.Errorf("the configuration of VM %d contains the join token", vm.VMID)
		}
	}
}

// attestAndRunJob returns a function that attests a machine and runs its job.
func attestAndRunJob(t *testing.T) func(*attestedFleet, pve.GuestVM, guest.Config) {
	t.Helper()

	return func(a *attestedFleet, vm pve.GuestVM, cfg guest.Config) {
		if _, err := a.attest(vm, cfg); err != nil {
			t.Error(err)
		}

		fleet.RunGuest(t, vm, cfg)
	}
}

// TestNoMachineWithoutSPIRE checks that no machine is created that could not attest.
func TestNoMachineWithoutSPIRE(t *testing.T) {
	t.Parallel()

	a := newAttestedFleet(t, spiretest.Start(t), v1alpha1.BootstrapRunnerToken, attestAndRunJob(t))
	a.startWithPool()
	a.EventuallyReady(a.template)
	a.server.Stop(t)

	claim := a.NewClaim("waits")
	a.Create(claim)
	a.EventuallyCondition(claim, v1alpha1.ConditionIdentityReady, metav1.ConditionFalse, "SPIREUnavailable")

	if made := a.CountClones(); made != 0 {
		t.Errorf("%d VMs were created, want 0", made)
	}

	// The server has no identity of this claim, so that its deletion does not need the server.
	given := a.NewClaim("given-up")
	a.Create(given)
	a.EventuallyCondition(given, v1alpha1.ConditionIdentityReady, metav1.ConditionFalse, "SPIREUnavailable")
	deleteObject(a.Fleet, given)
	eventuallyDeleted(a.Fleet, given)

	a.server.Restart(t)
	a.EventuallyReady(claim)

	if claim.Status.BootstrapInfo.Identity.AttestedAt == nil || claim.Status.BootstrapInfo.Identity.RegisteredAt == nil {
		t.Errorf("identity = %+v", claim.Status.BootstrapInfo.Identity)
	}

	// The VM is deleted without the server. The identity is deleted when the server is back.
	a.server.Stop(t)
	deleteObject(a.Fleet, claim)
	a.EventuallyCondition(claim, "IdentityRemoved", metav1.ConditionFalse, "SPIREUnavailable")

	if left := strings.Join(a.FindLeftovers(), ", "); strings.Contains(left, "VM ") {
		t.Errorf("leftovers: %s, want no VM", left)
	}

	a.server.Restart(t)
	a.eventuallyNoIdentities()
}

// testRefusedMachines checks that a machine that reports why it has no identity or no credential ends with this
// reason.
func testRefusedMachines(t *testing.T, server *spiretest.Server) {
	t.Helper()

	cases := map[string]struct {
		reason    string
		attests   bool
		condition string
	}{
		"token refused": {guest.ReasonAttestationRefused, false, v1alpha1.ConditionAttested},
		"no secret":     {guest.ReasonSecretMissing, true, v1alpha1.ConditionBootstrapped},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			a := newAttestedFleet(t, server, v1alpha1.BootstrapExternalSecrets, func(_ *attestedFleet, vm pve.GuestVM, cfg guest.Config) {
				if tc.attests {
					fleet.SendReport(vm.Context, cfg, guest.Report{Phase: guest.PhaseAttested, Time: time.Now()})
				}

				fleet.SendReport(vm.Context, cfg, guest.Report{
					Phase: guest.PhaseFailed, Reason: tc.reason, Message: "a message", Time: time.Now(),
				})
				<-vm.Context.Done()
			})
			a.template.Spec.Bootstrap.Config.ExternalSecrets = &v1alpha1.ExternalSecrets{
				Address: "https://vault.example.com:8200", Role: "runner", Path: "secret/data/{namespace}/{pool}/{claim}/{uid}",
			}
			a.startWithPool()
			a.EventuallyReady(a.template)

			claim := a.NewClaim("refused")
			claim.Finalizers = []string{"test.hyperfleet.io/look"} // to read its last status
			a.Create(claim)
			a.EventuallyCondition(claim, tc.condition, metav1.ConditionFalse, tc.reason)
			a.EventuallyEvent(tc.reason)
			a.Eventually("the VM being deleted", func() (bool, string) {
				left := strings.Join(a.FindLeftovers(), ", ")

				return !strings.Contains(left, "VM ") && !strings.Contains(left, "cloud-init ISO"), left
			})

			if err := a.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
				t.Fatal(err)
			}

			if claim.Status.EndReason != tc.reason || claim.Status.BootstrapInfo.GuestReason != tc.reason {
				t.Errorf("end reason %q, guest reason %q, want %s", claim.Status.EndReason, claim.Status.BootstrapInfo.GuestReason, tc.reason)
			}

			if made := a.GitHub.State().Registered; made != 0 {
				t.Errorf("%d credentials were created, want 0", made)
			}

			a.checkSecretsConfig(claim)
			a.removeFinalizers(claim)
			a.eventuallyNoIdentities()
		})
	}
}

// checkSecretsConfig checks the settings for the secrets manager on a machine's cloud-init ISO.
func (a *attestedFleet) checkSecretsConfig(claim *v1alpha1.MachineClaim) {
	a.T.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()

	cfg := a.configs[0]
	path := fmt.Sprintf("secret/data/%s//%s/%s", claim.Namespace, claim.Name, claim.UID)

	if cfg.Secrets == nil || cfg.Secrets.Path != path || cfg.Secrets.Auth != guest.SecretsAuthJWT || cfg.Secrets.Manager != guest.SecretsVault {
		a.T.Errorf("secrets = %+v, want path %s", cfg.Secrets, path)
	}

	if cfg.Callback != nil || cfg.JITConfig != "" || cfg.RunnerToken != "" {
		a.T.Error("the cloud-init ISO contains a credential, or a callback to get one from the operator")
	}
}
