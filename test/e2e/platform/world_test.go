// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/sim/ocm/crds"
	"github.com/hyperfleet/hyperfleet/test/brokers"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/postgres"
	"github.com/hyperfleet/hyperfleet/test/progress"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

const (
	samples = "../../../deploy/samples/platform"
	// patience bounds a wait; what is waited for takes seconds on two cores.
	patience = 2 * time.Minute
	lookAt   = 200 * time.Millisecond
	// identityKey is that of all adapters and of sweep.
	identityKey = "0123456789abcdef0123456789abcdef0123456789abcdef"

	site       = "site-1"
	agentsHome = "agents"

	ownerOnly = 0o600
)

// Names of the programs of a world.
const (
	progAPI           = "api"
	progSentinel      = "sentinel-clusters-1"
	progSentinel2     = "sentinel-clusters-2"
	progPoolsSentinel = "sentinel-nodepools"
	progClusters      = "adapter-clusters"
	progClusters2     = "adapter-clusters-2"
	progPools         = "adapter-nodepools"
	progAgents        = "adapter-agents"
)

// world is one installation of the platform, in a folder with copies of the samples.
type world struct {
	t    testing.TB
	dir  string
	kube *kube.Env
	// broker is there only where events go over RabbitMQ.
	broker *brokers.Server
	// base is the API's URL without path, and caller who calls it. With tls what runs in the cluster
	// does so by TLS.
	base     string
	caller   http.RoundTripper
	tls      bool
	api      *client.Client
	programs map[string]*program
	// sayf prints a line of the report.
	sayf func(format string, args ...any)
	// strangers are objects that have to stay as they are.
	strangers []stranger
}

// program is one process that comes and goes.
type program struct {
	args, env       []string
	health, metrics string
	log             string
	process         *procrun.Process
}

// setup says how a world differs from the samples.
type setup struct {
	// rabbit has events go over RabbitMQ, from Sentinels; else adapters follow the API.
	rabbit bool
	// agents adds the adapter of ManifestWorks to what clusters wait for.
	agents bool
	// pace are variables of who decides what is looked at.
	pace []string
}

// newWorld starts the servers, and writes the files; no program runs yet.
func newWorld(t testing.TB, s setup) *world {
	t.Helper()

	w := &world{t: t, dir: t.TempDir(), programs: map[string]*program{}, sayf: progress.NewPrinter(t)}
	w.copySamples(s)

	w.kube = kube.Start(t, kube.WithControllerManager())
	w.must(crds.InstallHub(t.Context(), w.kube.Config))
	w.must(crds.InstallSpoke(t.Context(), w.kube.Config))

	w.accounts()
	w.write("identity-key", identityKey+"\n")

	db := postgres.Start(t)
	w.write("database-url", db.NewDatabase(t)+"\n")

	if s.rabbit {
		w.broker = brokers.StartRabbitMQ(t)
		w.write("rabbitmq-url", w.broker.URL+"\n")
	}

	address := loopback.Address(t)
	w.base = "http://" + address

	api, err := client.New(platform.APIClient{BaseURL: w.base}, client.Options{})
	w.must(err)

	w.api = api
	w.describe(s, address)

	t.Cleanup(w.stopAll)
	w.sayf("servers are up")

	return w
}

// accounts gives each program that asks a cluster a kubeconfig for its own account, which
// has the role of the samples and nothing else.
func (w *world) accounts() {
	w.t.Helper()

	for name, account := range map[string][2]string{
		"clusters": {"hyperfleet-adapter-cluster-space", "clusters/rbac.yaml"}, "nodepools": {"hyperfleet-adapter-pool-config", "nodepools/rbac.yaml"},
		"agents": {"hyperfleet-adapter-cluster-agent", "agents/rbac.yaml"}, "sweep": {"hyperfleet-sweep", "sweep-rbac.yaml"},
	} {
		config := w.kube.ServiceAccount(w.t, "hyperfleet-system", account[0])
		w.kube.Apply(w.t, filepath.Join(w.dir, account[1]))
		w.write(name+".kubeconfig", w.read(w.kube.Kubeconfig(w.t, config)))
	}
}

// describe says how each program is run.
func (w *world) describe(s setup, address string) {
	w.add(progAPI, "HYPERFLEET_SERVER_", []string{"api", "--config", "api.yaml"}, "HYPERFLEET_SERVER_ADDRESS="+address)

	if s.rabbit {
		for name, file := range map[string]string{
			progSentinel: "sentinel-clusters.yaml", progSentinel2: "sentinel-clusters.yaml", progPoolsSentinel: "sentinel-nodepools.yaml",
		} {
			w.add(name, "HYPERFLEET_", []string{"sentinel", "--config", file},
				append(s.paced("HYPERFLEET_"), "HYPERFLEET_CLIENTS_HYPERFLEET_API_BASE_URL="+w.base, "BROKER_CONFIG_FILE=broker.yaml")...)
		}
	}

	for name, of := range map[string][2]string{
		progClusters: {"clusters", "clusters"}, progClusters2: {"clusters", "clusters"},
		progPools: {"nodepools", "nodepools"}, progAgents: {"agents", "clusters"},
	} {
		args := []string{"adapter", "serve", "--config", of[0] + "/adapter.yaml", "--task-config", of[0] + "/task.yaml"}
		env := append(s.paced("HYPERFLEET_EVENTS_"), "HYPERFLEET_CLIENTS_HYPERFLEET_API_BASE_URL="+w.base)

		if s.rabbit {
			args = append(args, "--broker-config", "broker.yaml")
			env = append(env, "HYPERFLEET_EVENTS_SOURCE=broker", "HYPERFLEET_CLIENTS_BROKER_TOPIC="+of[1],
				"HYPERFLEET_CLIENTS_BROKER_SUBSCRIPTION_ID="+of[0])
		}

		w.add(name, "HYPERFLEET_", args, env...)
	}
}

// paced are the variables of the pace, of programs that have them below a prefix.
func (s setup) paced(prefix string) []string {
	out := make([]string, 0, len(s.pace))
	for _, one := range s.pace {
		out = append(out, prefix+one)
	}

	return out
}

// platform are the programs of a whole platform, one of each.
func (w *world) platform() []string {
	all := []string{progAPI, progClusters, progPools}
	if w.broker != nil {
		all = append(all, progSentinel, progPoolsSentinel)
	}

	return all
}

// add describes one program; its addresses for probes and metrics are free ones.
func (w *world) add(name, prefix string, args []string, env ...string) {
	health, metrics := loopback.Address(w.t), loopback.Address(w.t)
	w.programs[name] = &program{
		args: args, health: "http://" + health, metrics: "http://" + metrics, log: filepath.Join(w.dir, name+".log"),
		env: append(append(os.Environ(), prefix+"HEALTH_ADDRESS="+health, prefix+"METRICS_ADDRESS="+metrics), env...),
	}
}

// copySamples copies the samples as they are, but for what clusters wait for.
func (w *world) copySamples(s setup) {
	w.must(os.CopyFS(w.dir, os.DirFS(samples)))

	if s.agents {
		text := w.read(filepath.Join(w.dir, "api.yaml"))
		w.write("api.yaml", strings.Replace(text, "[cluster-space]", "[cluster-space, cluster-agent]", 1))
	}
}

// start starts programs, and returns when they are ready.
func (w *world) start(names ...string) {
	w.t.Helper()

	for _, name := range names {
		p := w.programs[name]

		process, err := procrun.Start(context.Background(), procrun.Spec{
			Name: name, Path: binary, Args: p.args, Env: p.env, Dir: w.dir, LogPath: p.log,
		})
		w.must(err)

		p.process = process
	}

	for _, name := range names {
		p := w.programs[name]

		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := p.process.WaitReady(ctx, func(ctx context.Context) error { return ready(ctx, p.health+"/readyz") })

		cancel()

		if err != nil {
			w.t.Fatalf("start %s: %v", name, err)
		}
	}
}

// kill ends programs as a power failure would.
func (w *world) kill(names ...string) {
	w.t.Helper()

	for _, name := range names {
		w.must(w.programs[name].process.Kill())
	}
}

func (w *world) stopAll() {
	for name, p := range w.programs {
		if p.process == nil {
			continue
		}

		if err := p.process.Stop(); err != nil {
			w.t.Errorf("stop %s: %v", name, err)
		}

		if w.t.Failed() {
			w.t.Logf("the end of %s's log:\n%s", name, p.process.LogTail())
		}
	}
}

// metric gives the sum of a metric's series whose labels contain the text; 0 if there are none.
func (w *world) metric(name, metric, labels string) float64 {
	w.t.Helper()

	sum, err := scrape.Sum(w.t.Context(), w.programs[name].metrics+"/metrics", metric, labels)
	if !errors.Is(err, scrape.ErrNoSeries) {
		w.must(err)
	}

	return sum
}

func ready(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}

	response, err := (&http.Client{Timeout: callTimeout}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()

	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}

	return nil
}

// eventually waits until problem says nothing.
func (w *world) eventually(what string, problem func() string) {
	w.t.Helper()

	deadline := time.Now().Add(patience)

	for {
		text := problem()
		if text == "" {
			w.sayf("%s", what)

			return
		}

		if time.Now().After(deadline) {
			w.t.Fatalf("never: %s: %s", what, text)
		}

		time.Sleep(lookAt)
	}
}

func (w *world) must(err error) {
	w.t.Helper()

	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) write(name, text string) {
	w.t.Helper()
	w.must(os.WriteFile(filepath.Join(w.dir, name), []byte(text), ownerOnly))
}

func (w *world) read(path string) string {
	w.t.Helper()

	data, err := os.ReadFile(path)
	w.must(err)

	return string(data)
}
