// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	identityspire "github.com/hyperfleet/hyperfleet/identity/spire"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/github/simrunner"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/spire"
	"github.com/hyperfleet/hyperfleet/test/vault"
)

var (
	env      *kube.Env // one API server for all tests of the package
	programs string    // the folder of the machines' programs
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "--config" {
		os.Exit(runThief(os.Args[1:]))
	}

	os.Exit(runWithPrograms(func() int {
		return kube.Run(m, &env, kube.WithCRDs("../../../deploy/crds"))
	}))
}

// runWithPrograms builds the machines' programs as a release does.
func runWithPrograms(run func() int) int {
	return exe.RunWith(func(dir string) int {
		programs = dir

		return run()
	}, "cmd/bootstrap-service", "cmd/forgesim")
}

// fixture is a fleet with a SPIRE server, to which its machines attest.
type fixture struct {
	*fleet.Fleet

	spire    *spire.Server
	template *v1alpha1.HypervisorMachineTemplate
	// vms is the folder of the machines' root folders, and image their common image.
	vms, image string
}

// settings change a fixture before it starts.
type settings struct {
	model    func(*fixture, *pve.Model)
	registry func(*identityspire.Options)
	spire    []spire.Option
}

// newFixture starts a SPIRE server, and creates a fleet that uses it.
func newFixture(t *testing.T, method string, change settings) *fixture {
	t.Helper()

	dir := loopback.SocketFolder(t)
	w := &fixture{spire: spire.Start(t, change.spire...), vms: dir, image: filepath.Join(dir, "image")}
	w.createImage(t)

	model := fleet.Model()
	model.Guest = pve.Guest{
		Kind: pve.GuestExec, Program: filepath.Join(programs, "bootstrap-service"), ImageDir: w.image, WorkDir: dir,
	}

	if change.model != nil {
		change.model(w, &model)
	}

	w.Fleet = fleet.New(t, env, fleet.Options{Model: model})
	w.Identity, w.TrustDomain = w.newRegistry(t, change.registry), w.spire.TrustDomain
	w.template = w.NewTemplate()
	w.template.Spec.Attestation = &v1alpha1.Attestation{Method: v1alpha1.AttestationJoinToken}
	w.template.Spec.Bootstrap.Method = method

	w.CreateCluster(w.NewCluster())

	return w
}

// createImage creates the image with the runner and spire-agent.
func (w *fixture) createImage(t *testing.T) {
	t.Helper()

	if err := simrunner.Layout(w.image, filepath.Join(programs, "forgesim"), true); err != nil {
		t.Fatal(err)
	}

	agent := filepath.Join(w.image, guest.AgentPath)
	if err := os.MkdirAll(filepath.Dir(agent), 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.Symlink(spire.AgentProgram(t), agent); err != nil {
		t.Fatal(err)
	}
}

// newRegistry returns the operator's registry. Its selectors match the bootstrap-service of this test.
func (w *fixture) newRegistry(t *testing.T, change func(*identityspire.Options)) *identityspire.Registry {
	t.Helper()

	options := identityspire.Options{
		Address: "unix://" + w.spire.Socket, TrustDomain: w.spire.TrustDomain, MachineAddress: w.spire.Address, OperatorUID: t.Name(),
		Selectors: []string{"unix:uid:" + strconv.Itoa(os.Getuid()), "unix:path:" + filepath.Join(programs, "bootstrap-service")},
	}
	if change != nil {
		change(&options)
	}

	registry, err := identityspire.New(options)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = registry.Close() })

	return registry
}

// createAndStart creates the template and a pool, and starts the operator.
func (w *fixture) createAndStart() {
	w.T.Helper()
	w.Create(w.template)
	w.Create(w.NewPool(1))
	w.Start()
	w.EventuallyReady(w.template)
}

// useVault makes machines get their credential from a Vault that trusts the SPIRE server. The Vault has a
// registration token at the path.
func (w *fixture) useVault(auth, path string) {
	w.T.Helper()

	server := vault.Start(w.T)
	ours := "spiffe://" + w.spire.TrustDomain + "/vm/" + w.Namespace + "/*"

	server.MountKV(w.T, "secret", 2)
	server.WritePolicy(w.T, "runners", `path "secret/data/runners/`+w.Namespace+`/*" { capabilities = ["read"] }`)

	switch auth {
	case guest.SecretsAuthJWT:
		server.EnableJWT(w.T, auth, vault.ServeJWKS(w.T, func() []byte { return w.spire.JWKS(w.T) }), spire.JWTIssuer)
		server.WriteJWTRole(w.T, auth, "runners", "vault", ours, "runners")
	case guest.SecretsAuthCert:
		server.EnableCert(w.T, auth)
		server.WriteCertRole(w.T, auth, "runners", w.spire.Bundle(w.T), ours, "runners")
	}

	w.template.Spec.Bootstrap.Config.ExternalSecrets = &v1alpha1.ExternalSecrets{
		Address: server.Address, CABundle: server.CABundle, Auth: auth, Role: "runners", Path: "secret/data/runners/{namespace}/runner",
	}

	server.WriteKV(w.T, "secret", path, map[string]any{
		"runner_token": w.createRegistrationToken(), "registration_url": w.GitHub.URL + "/" + githubtest.Repo,
	})
}

// createRegistrationToken requests a token from GitHub, as the administrator of the Vault does.
func (w *fixture) createRegistrationToken() string {
	w.T.Helper()

	req, err := http.NewRequestWithContext(w.T.Context(), http.MethodPost,
		w.GitHub.URL+"/repos/"+githubtest.Repo+"/actions/runners/registration-token", http.NoBody)
	if err != nil {
		w.T.Fatal(err)
	}

	req.Header.Set("Authorization", "Bearer "+githubtest.PAT)

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.T.Fatal(err)
	}

	defer func() { _ = resp.Body.Close() }()

	var reply struct {
		Token string `json:"token"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&reply); err != nil || reply.Token == "" {
		w.T.Fatalf("registration token: %s, %v", resp.Status, err)
	}

	return reply.Token
}

// waitForCleanup waits until nothing is left, neither of the fleet nor at the SPIRE server.
func (w *fixture) waitForCleanup() {
	w.T.Helper()
	w.EventuallyClean()
	w.Eventually("no identity is left", func() (bool, string) {
		left := w.spire.ListRegistered(w.T)

		return len(left) == 0, strings.Join(left, ", ")
	})
	w.Eventually("no agent runs", func() (bool, string) {
		left := w.listProcesses()

		return len(left) == 0, strings.Join(left, ", ")
	})
}

// listProcesses returns the processes that run below the machines' folders.
func (w *fixture) listProcesses() []string {
	w.T.Helper()

	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		w.T.Fatal(err)
	}

	var out []string

	for _, file := range all {
		line, err := os.ReadFile(file)
		if err == nil && bytes.Contains(line, []byte(w.vms+"/")) {
			out = append(out, string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}

	return out
}
