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
	"github.com/hyperfleet/hyperfleet/test/loopback"
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
	// The operator's steps use the global tracer.
	spans = tracetest.NewInMemoryExporter()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)))

	os.Exit(withReleaseImages(func() int { return build(m) }))
}

// build builds the machines' programs and prepares the management cluster.
func build(m *testing.M) int {
	return exe.RunWith(func(dir string) int {
		programs = dir

		return kube.Run(m, &env, kube.WithCRDs("../../deploy/crds", "../../deploy/bridge/tenancy.yaml"),
			kube.WithControllerManager(), kube.WithScheme(virtv1.AddToScheme), kube.WithSetup(prepareCluster))
	}, "cmd/bootstrap-service", "cmd/forgesim")
}

// fixture is a fleet whose scanner knows all long-lived credentials, and which records everything that could
// contain them.
type fixture struct {
	*fleet.Fleet
	records

	scanner secrets.Scanner
	// disks is the folder of the machines' disks.
	disks string
	// appKey is the GitHub App's key, and pat the personal access token.
	appKey, pat          string
	machines, lifecycles atomic.Int64
	// If isBroken is set, the images of machines contain no runner.
	isBroken  atomic.Bool
	recorders sync.WaitGroup
}

// newCredential returns a random credential.
func newCredential(t *testing.T, prefix string) string {
	t.Helper()

	raw := make([]byte, 20)
	if _, err := rand.Read(raw); err != nil {
		t.Fatal(err)
	}

	return prefix + hex.EncodeToString(raw)[:36]
}

// newFixture creates the credentials. Each machine is the real bootstrap service in its own folder.
func newFixture(t *testing.T) *fixture {
	t.Helper()

	dir := loopback.SocketFolder(t)

	signer, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}

	w := &fixture{
		disks: filepath.Join(dir, "vm"), pat: newCredential(t, "ghp_"),
		appKey: string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(signer)})),
	}
	token, hook := string(uuid.NewUUID()), newCredential(t, "hook-")
	model := fleet.Model()
	model.Tokens[0].Secret = token
	model.Guest.Script = w.runMachine

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
	w.ReportKey = []byte(newCredential(t, "")[:32])
	w.Log = &w.records

	w.SetSecret("proxmox", "tokenSecret", token)
	w.SetSecret("webhook", "secret", hook)
	w.SetSecret("github", "pat", w.pat)
	w.SetSecret("github", "key", w.appKey)
	w.SetSecret("github", "app", strconv.Itoa(appID))
	w.SetSecret("github", "installation", strconv.Itoa(installationID))
	w.GitHub.SetWebhook(control.WebhookTarget{URL: w.Front.URL + "/webhooks/github", Secret: hook})
	w.scanner.Register(
		secrets.Secret{Name: "the hypervisor's token", Value: token}, secrets.Secret{Name: "the webhook's secret", Value: hook},
		secrets.Secret{Name: "the forge's token", Value: w.pat}, secrets.Secret{Name: "the App's key", Value: w.appKey},
		secrets.Secret{Name: "the operator's key", Value: string(w.ReportKey)},
	)
	w.startRecording(t)

	return w
}

// startRecording starts to record objects, processes and the hypervisor's data.
func (w *fixture) startRecording(t *testing.T) {
	t.Helper()

	ctx, cancel := context.WithCancel(context.Background())

	t.Cleanup(func() {
		cancel()
		w.recorders.Wait()
	})
	w.watchObjects(ctx, t, w.Namespace)
	t.Cleanup(processes.subscribe(w))
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

// registerRunnerCredential registers a credential that a runner gets in its environment.
func (w *fixture) registerRunnerCredential(name, value string) {
	switch name {
	case "ACTIONS_RUNNER_INPUT_JITCONFIG", "ACTIONS_RUNNER_INPUT_TOKEN":
		// A credential from the cloud-init ISO is registered already, with more allowed places.
		w.scanner.Register(secrets.Secret{Name: "the runner's credential, handed over", Value: value, Places: []string{inEnv}})
	}
}

// runMachine creates a VM's disk, applies cloud-init and runs the bootstrap service until it ends.
func (w *fixture) runMachine(vm pve.GuestVM) {
	root := fmt.Sprintf("%s/%d", w.disks, w.machines.Add(1))
	if err := w.createDisk(root, vm); err != nil {
		w.T.Errorf("create the disk of %s: %v", vm.Name, err)

		return
	}

	if cfg, err := fleet.ReadGuestConfig(vm.Drive); err == nil {
		w.registerSeedCredentials(&cfg)
	}

	var console bytes.Buffer

	done := make(chan struct{})

	w.recorders.Go(func() {
		for {
			w.addTree(onDisk, root)

			select {
			case <-done:
				w.addTree(onDisk, root)

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

// createDisk creates a machine's disk from its image and what cloud-init writes.
func (w *fixture) createDisk(root string, vm pve.GuestVM) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}

	if !w.isBroken.Load() {
		if err := simrunner.Layout(root, filepath.Join(programs, "forgesim"), true); err != nil {
			return err
		}
	}

	// cloud-init stores all of a NoCloud seed; see its documentation, "/var/lib/cloud".
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

// registerSeedCredentials registers the machine's own short-lived credentials with the places where each is
// allowed.
func (w *fixture) registerSeedCredentials(cfg *guest.Config) {
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

// checkFindings scans everything, and reports all findings.
func (w *fixture) checkFindings() {
	w.T.Helper()
	w.scanAll()

	for _, finding := range w.scanner.Findings() {
		w.T.Errorf("%s", finding)
	}

	for _, place := range listPlaces() {
		if w.scanner.ScanCounts()[place] == 0 {
			w.T.Errorf("nothing was scanned in %s", place)
		}
	}
}

// scanAll scans everything that was recorded, and the current state.
func (w *fixture) scanAll() {
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

	w.scanWith(&w.scanner)
}

// useApp changes the template's credentials to those of the GitHub App.
func useApp(template *v1alpha1.HypervisorMachineTemplate) {
	source := func(key string) v1alpha1.SecretValueSource {
		return v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "github", Key: key}}
	}
	template.Spec.Bootstrap.Config.GitHub.Credentials = nil
	template.Spec.Bootstrap.Config.GitHub.App = &v1alpha1.GitHubApp{
		AppID: source("app"), PrivateKey: source("key"), InstallationID: source("installation"),
	}
}
