// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"k8s.io/apimachinery/pkg/util/uuid"
	virtv1 "kubevirt.io/api/core/v1"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/execguest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	simgithub "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/github/simrunner"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/secrets"
)

const (
	appID          = 4711
	installationID = 12345678
)

var (
	env      *kube.Env
	programs string
	spans    *tracetest.InMemoryExporter
)

func TestMain(m *testing.M) {
	// The operator's steps take the tracer of the process.
	spans = tracetest.NewInMemoryExporter()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)))

	os.Exit(withImages(func() int { return build(m) }))
}

// build makes the machines' programs, and what a management cluster has.
func build(m *testing.M) int {
	return exe.RunWith(func(dir string) int {
		programs = dir

		return kube.Run(m, &env, kube.WithCRDs("../../deploy/crds", "../../deploy/bridge/tenancy.yaml"),
			kube.WithControllerManager(), kube.WithScheme(virtv1.AddToScheme), kube.WithSetup(prepare))
	}, "cmd/bootstrap-service", "cmd/forgesim")
}

// world is a fleet whose long-lived credentials are known to a scanner, and of which all is
// kept that could tell of them.
type world struct {
	*fleet.Fleet
	records

	scanner secrets.Scanner
	// disks is where the machines' disks are kept; images are what they begin with.
	disks, image string
	// app is the GitHub App's key, pat the other way to the forge.
	app, pat        string
	machines, lives atomic.Int64
	// broken machines have no runner in their image.
	broken atomic.Bool
	ends   sync.WaitGroup
}

// unguessable is a credential that is nothing else.
func unguessable(t *testing.T, prefix string) string {
	t.Helper()

	raw := make([]byte, 20)
	if _, err := rand.Read(raw); err != nil {
		t.Fatal(err)
	}

	return prefix + hex.EncodeToString(raw)[:36]
}

// newWorld plants the credentials, and lets machines be the real program in a folder each.
func newWorld(t *testing.T) *world {
	t.Helper()

	dir, err := os.MkdirTemp("", "hf-") //nolint:usetesting // paths of sockets are short (unix(7))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = os.RemoveAll(dir) })

	signer, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}

	w := &world{
		disks: filepath.Join(dir, "vm"), image: filepath.Join(dir, "image"), pat: unguessable(t, "ghp_"),
		app: string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(signer)})),
	}
	token, hook := string(uuid.NewUUID()), unguessable(t, "hook-")
	model := fleet.Model()
	model.Tokens[0].Secret = token
	model.Guest.Script = w.machine

	w.Fleet = fleet.New(t, env, fleet.Options{Model: model, GitHub: simgithub.Options{
		Unlimited: true,
		PATs:      []simgithub.PAT{{Token: w.pat, Scopes: []string{"repo", "admin:org", "admin:org_hook"}}},
		App: &simgithub.App{
			ID: appID, ClientID: "Iv23liHyperFleet", Slug: "hyperfleet", PublicKey: &signer.PublicKey,
			Installations: []simgithub.Installation{{
				ID: installationID, Account: githubtest.Org,
				Permissions: map[string]string{
					"administration": "write", "actions": "write", "metadata": "read", "organization_self_hosted_runners": "write",
				},
			}},
		},
	}})
	w.ReportKey = []byte(unguessable(t, "")[:32])
	w.Log = &w.records

	w.SetSecret("proxmox", "tokenSecret", token)
	w.SetSecret("webhook", "secret", hook)
	w.SetSecret("github", "pat", w.pat)
	w.SetSecret("github", "key", w.app)
	w.SetSecret("github", "app", strconv.Itoa(appID))
	w.SetSecret("github", "installation", strconv.Itoa(installationID))
	w.GitHub.SetWebhook(control.WebhookTarget{URL: w.Front.URL + "/webhooks/github", Secret: hook})
	w.scanner.Register(
		secrets.Secret{Name: "the hypervisor's token", Value: token}, secrets.Secret{Name: "the webhook's secret", Value: hook},
		secrets.Secret{Name: "the forge's token", Value: w.pat}, secrets.Secret{Name: "the App's key", Value: w.app},
		secrets.Secret{Name: "the operator's key", Value: string(w.ReportKey)},
	)
	w.observe(t)

	return w
}

// observe begins to keep what there is to be seen.
func (w *world) observe(t *testing.T) {
	t.Helper()

	ctx, cancel := context.WithCancel(context.Background())

	t.Cleanup(func() {
		cancel()
		w.ends.Wait()
	})
	w.watch(ctx, t, w.Namespace)
	t.Cleanup(processes.follow(w))
	t.Cleanup(w.PVE.OnCall(func(c pve.Call) {
		if c.Phase != pve.PhaseAfter || c.Method == http.MethodGet {
			return
		}

		state := w.PVE.Snapshot()
		if vm, ok := state.VM(c.VMID); ok {
			data, _ := json.Marshal(vm)
			w.add(inConfig, vm.Name, data)
		}

		for _, iso := range state.ISOs() {
			w.add(onSeed, iso.VolID, w.PVE.VolumeData(iso.Node, iso.VolID))
		}
	}))
}

// told learns what a runner was handed by its environment.
func (w *world) told(name, value string) {
	switch name {
	case "ACTIONS_RUNNER_INPUT_JITCONFIG", "ACTIONS_RUNNER_INPUT_TOKEN":
		// Where it comes from the cloud-init ISO it is known already, with the cloud-init ISO as a place.
		w.scanner.Register(secrets.Secret{Name: "the runner's credential, handed over", Value: value, Places: []string{inEnv}})
	}
}

// machine is a VM: its disk, cloud-init, and the bootstrap service until it ends.
func (w *world) machine(vm pve.GuestVM) {
	root := fmt.Sprintf("%s/%d", w.disks, w.machines.Add(1))
	if err := w.disk(root, vm); err != nil {
		w.T.Errorf("make the disk of %s: %v", vm.Name, err)

		return
	}

	if cfg, err := fleet.ReadGuestConfig(vm.Drive); err == nil {
		w.plantSeed(&cfg)
	}

	var console bytes.Buffer

	done := make(chan struct{})

	w.ends.Go(func() {
		for {
			w.tree(onDisk, root)

			select {
			case <-done:
				w.tree(onDisk, root)

				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})

	program := execguest.Program{
		Path: filepath.Join(programs, "bootstrap-service"), Config: filepath.Join(root, execguest.ConfigPath), Root: root,
		Console: &console, ReportGroup: func(int) {},
	}
	if err := program.Run(vm.Context); err != nil {
		fmt.Fprintln(&console, err)
	}

	close(done)
	w.add(onConsole, vm.Name, console.Bytes())
}

// disk lays a machine's disk: its image, and what cloud-init makes and keeps.
func (w *world) disk(root string, vm pve.GuestVM) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}

	if !w.broken.Load() {
		if err := simrunner.Layout(root, filepath.Join(programs, "forgesim"), true); err != nil {
			return err
		}
	}

	// cloud-init keeps all of a NoCloud seed; see its documentation, "/var/lib/cloud".
	kept := filepath.Join(root, "var", "lib", "cloud", "instance")
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return err
	}

	for name, data := range vm.Drive {
		if err := os.WriteFile(filepath.Join(kept, name+".txt"), data, 0o600); err != nil {
			return err
		}
	}

	return execguest.ApplyCloudInit(vm.Drive, root, vm.Log)
}

// plantSeed makes the machine's own, short-lived credentials known, with the places that
// each may be in.
func (w *world) plantSeed(cfg *guest.Config) {
	own := []string{onSeed, onDisk}
	runner := append([]string{inEnv}, own...)

	w.scanner.Register(
		secrets.Secret{Name: "the runner's JIT configuration", Value: cfg.JITConfig, Places: runner},
		secrets.Secret{Name: "the runner's registration token", Value: cfg.RunnerToken, Places: runner},
	)

	if cfg.Report != nil {
		w.scanner.Register(secrets.Secret{Name: "the report token", Value: cfg.Report.Token, Places: own})
	}

	if cfg.Callback != nil {
		w.scanner.Register(secrets.Secret{Name: "the claim code", Value: cfg.Callback.Code, Places: own})
	}
}

// check says what was found where it may not be.
func (w *world) check() {
	w.T.Helper()
	w.look()

	for _, finding := range w.scanner.Findings() {
		w.T.Errorf("%s", finding)
	}

	for _, place := range every() {
		if w.scanner.ScanCounts()[place] == 0 {
			w.T.Errorf("nothing was looked at in %s", place)
		}
	}
}

// look looks at everything that was kept, and at what there is now.
func (w *world) look() {
	w.T.Helper()

	for _, vm := range w.PVE.Snapshot().VMs {
		w.add(onConsole, vm.Name, []byte(w.PVE.Console(vm.VMID)))
	}

	for _, volume := range w.PVE.Snapshot().Volumes {
		w.add(inConfig, "a volume", []byte(volume.VolID))
		w.add(inConfig, volume.VolID, w.PVE.VolumeData(volume.Node, volume.VolID))
	}

	for _, task := range w.PVE.Snapshot().Tasks {
		w.add(inConfig, "a task", fmt.Append(nil, task))
	}

	for _, span := range spans.GetSpans() {
		w.add(inTrace, span.Name, fmt.Appendf(nil, "%+v %+v %+v", span.Attributes, span.Events, span.Status))
	}

	for _, registry := range []prometheus.Gatherer{w.Registry, ctrlmetrics.Registry} {
		families, err := registry.Gather()
		if err != nil {
			w.T.Fatal(err)
		}

		for _, family := range families {
			w.add(inMetrics, family.GetName(), []byte(family.String()))
		}
	}

	w.show(&w.scanner)
}

// useApp lets a template log in to the forge as the App.
func useApp(template *v1alpha1.HypervisorMachineTemplate) {
	source := func(key string) v1alpha1.SecretValueSource {
		return v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "github", Key: key}}
	}
	template.Spec.Bootstrap.Config.GitHub.Credentials = nil
	template.Spec.Bootstrap.Config.GitHub.App = &v1alpha1.GitHubApp{
		AppID: source("app"), PrivateKey: source("key"), InstallationID: source("installation"),
	}
}
