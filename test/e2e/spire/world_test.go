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
	"github.com/hyperfleet/hyperfleet/test/spire"
	"github.com/hyperfleet/hyperfleet/test/vault"
)

var (
	env      *kube.Env // one API server for all tests of the package
	programs string    // the folder of what machines run
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "--config" {
		os.Exit(thief(os.Args[1:]))
	}

	os.Exit(withPrograms(func() int {
		return kube.Run(m, &env, kube.WithCRDs("../../../deploy/crds"))
	}))
}

// withPrograms builds what machines run, as releases have it.
func withPrograms(run func() int) int {
	return exe.RunWith(func(dir string) int {
		programs = dir

		return run()
	}, "cmd/bootstrap-service", "cmd/forgesim")
}

// world is a fleet with a SPIRE server, whose machines attest to it.
type world struct {
	*fleet.Fleet

	spire    *spire.Server
	template *v1alpha1.HypervisorMachineTemplate
	// vms is where the machines' root folders are, image what all of them have.
	vms, image string
}

// settings change a world before it begins.
type settings struct {
	model    func(*world, *pve.Model)
	registry func(*identityspire.Options)
	spire    []spire.Option
}

// newWorld starts a SPIRE server, and makes a fleet that attests by it.
func newWorld(t *testing.T, method string, change settings) *world {
	t.Helper()

	// Paths of sockets are short (unix(7)), names of tests are not.
	dir, err := os.MkdirTemp("", "hf-") //nolint:usetesting // as above
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = os.RemoveAll(dir) })

	w := &world{spire: spire.Start(t, change.spire...), vms: dir, image: filepath.Join(dir, "image")}
	w.layImage(t)

	model := fleet.Model()
	model.Guest = pve.Guest{
		Kind: pve.GuestExec, Program: filepath.Join(programs, "bootstrap-service"), ImageDir: w.image, WorkDir: dir,
	}

	if change.model != nil {
		change.model(w, &model)
	}

	w.Fleet = fleet.New(t, env, fleet.Options{Model: model})
	w.Identity, w.TrustDomain = w.registry(t, change.registry), w.spire.TrustDomain
	w.template = w.NewTemplate()
	w.template.Spec.Attestation = &v1alpha1.Attestation{Method: v1alpha1.AttestationJoinToken}
	w.template.Spec.Bootstrap.Method = method

	w.CreateCluster(w.NewCluster())

	return w
}

// layImage makes the image: the runner, and spire-agent.
func (w *world) layImage(t *testing.T) {
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

// registry is the operator's, for machines whose bootstrap-service is where it was built.
func (w *world) registry(t *testing.T, change func(*identityspire.Options)) *identityspire.Registry {
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

// begin makes template and pool, and starts the operator.
func (w *world) begin() {
	w.T.Helper()
	w.Create(w.template)
	w.Create(w.NewPool(1))
	w.Start()
	w.EventuallyReady(w.template)
}

// useVault has machines get their credential from a Vault, which trusts the SPIRE server; it
// holds a registration token at the path.
func (w *world) useVault(auth, path string) {
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
		"runner_token": w.registrationToken(), "registration_url": w.GitHub.URL + "/" + githubtest.Repo,
	})
}

// registrationToken asks the forge for one, as whoever fills the Vault does.
func (w *world) registrationToken() string {
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

// eventuallyForgotten waits until nothing is left anywhere, with the SPIRE server either.
func (w *world) eventuallyForgotten() {
	w.T.Helper()
	w.EventuallyClean()
	w.Eventually("no identity being left", func() (bool, string) {
		left := w.spire.ListRegistered(w.T)

		return len(left) == 0, strings.Join(left, ", ")
	})
	w.Eventually("no agent running", func() (bool, string) {
		left := w.processes()

		return len(left) == 0, strings.Join(left, ", ")
	})
}

// processes are those that run below the machines' folders.
func (w *world) processes() []string {
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
