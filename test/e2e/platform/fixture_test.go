// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"cmp"
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
	// waitTimeout limits most waits. The expected results take seconds on two cores.
	waitTimeout  = 2 * time.Minute
	pollInterval = 200 * time.Millisecond
	// identityKey is the identity key of all adapters and of sweep.
	identityKey = "0123456789abcdef0123456789abcdef0123456789abcdef"

	site            = "site-1"
	agentsNamespace = "agents"

	ownerOnly = 0o600
)

// These are the names of a fixture's programs.
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

// fixture is an installation of the platform, in a folder with copies of the samples.
type fixture struct {
	t    testing.TB
	dir  string
	kube *kube.Env
	// broker is nil unless events are sent over RabbitMQ.
	broker *brokers.Server
	// apiURL is the API's URL without a path, and transport connects to it. With tls, the programs in the
	// cluster use TLS.
	apiURL    string
	transport http.RoundTripper
	tls       bool
	api       *client.Client
	programs  map[string]*program
	// timeout limits each wait. Default: waitTimeout.
	timeout time.Duration
	// logf prints a line of the report.
	logf func(format string, args ...any)
	// foreignObjects are objects that the platform must not change.
	foreignObjects []foreignObject
}

// program is a process that tests start and stop.
type program struct {
	// path is the program's file. Default: binary.
	path            string
	args, env       []string
	health, metrics string
	log             string
	process         *procrun.Process
}

// options are the differences between a fixture and the samples.
type options struct {
	// useRabbitMQ runs Sentinels that send events over RabbitMQ. Otherwise adapters follow the API.
	useRabbitMQ bool
	// withAgents makes clusters require the adapter that creates ManifestWorks.
	withAgents bool
	// intervals are environment variables of the programs that decide which resources are reconciled.
	intervals []string
	// checkout is the absolute path of a checkout of another version, with its program in bin/. The fixture then uses the
	// program and the samples of this version.
	checkout string
}

// newFixture starts the servers and writes the files. It starts no program.
func newFixture(t testing.TB, s options) *fixture {
	t.Helper()

	w := &fixture{t: t, dir: t.TempDir(), programs: map[string]*program{}, logf: progress.NewPrinter(t)}
	w.copySamples(s)

	w.kube = kube.Start(t, kube.WithControllerManager())
	w.must(crds.InstallHub(t.Context(), w.kube.Config))
	w.must(crds.InstallSpoke(t.Context(), w.kube.Config))

	w.createServiceAccounts()
	w.writeFile("identity-key", identityKey+"\n")

	db := postgres.Start(t)
	w.writeFile("database-url", db.NewDatabase(t)+"\n")

	if s.useRabbitMQ {
		w.broker = brokers.StartRabbitMQ(t)
		w.writeFile("rabbitmq-url", w.broker.URL+"\n")
	}

	address := loopback.Address(t)
	w.apiURL = "http://" + address

	api, err := client.New(platform.APIClient{BaseURL: w.apiURL}, client.Options{})
	w.must(err)

	w.api = api
	w.addPrograms(s, address)

	t.Cleanup(w.stopAll)
	w.logf("all servers are ready")

	return w
}

// createServiceAccounts creates a service account and a kubeconfig for each program that uses a Kubernetes
// cluster. The account has only the role of the samples.
func (w *fixture) createServiceAccounts() {
	w.t.Helper()

	for name, account := range map[string][2]string{
		"clusters": {"hyperfleet-adapter-cluster-space", "clusters/rbac.yaml"}, "nodepools": {"hyperfleet-adapter-pool-config", "nodepools/rbac.yaml"},
		"agents": {"hyperfleet-adapter-cluster-agent", "agents/rbac.yaml"}, "sweep": {"hyperfleet-sweep", "sweep-rbac.yaml"},
	} {
		config := w.kube.ServiceAccount(w.t, "hyperfleet-system", account[0])
		w.kube.Apply(w.t, filepath.Join(w.dir, account[1]))
		w.writeFile(name+".kubeconfig", w.readFile(w.kube.Kubeconfig(w.t, config)))
	}
}

// addPrograms adds all programs with their arguments and environment.
func (w *fixture) addPrograms(s options, address string) {
	w.addProgram(progAPI, "HYPERFLEET_SERVER_", []string{"api", "--config", "api.yaml"}, "HYPERFLEET_SERVER_ADDRESS="+address)

	if s.useRabbitMQ {
		for name, file := range map[string]string{
			progSentinel: "sentinel-clusters.yaml", progSentinel2: "sentinel-clusters.yaml", progPoolsSentinel: "sentinel-nodepools.yaml",
		} {
			w.addProgram(name, "HYPERFLEET_", []string{"sentinel", "--config", file},
				append(s.prefixIntervals("HYPERFLEET_"), "HYPERFLEET_CLIENTS_HYPERFLEET_API_BASE_URL="+w.apiURL, "BROKER_CONFIG_FILE=broker.yaml")...)
		}
	}

	for name, of := range map[string][2]string{
		progClusters: {"clusters", "clusters"}, progClusters2: {"clusters", "clusters"},
		progPools: {"nodepools", "nodepools"}, progAgents: {"agents", "clusters"},
	} {
		args := []string{"adapter", "serve", "--config", of[0] + "/adapter.yaml", "--task-config", of[0] + "/task.yaml"}
		env := append(s.prefixIntervals("HYPERFLEET_EVENTS_"), "HYPERFLEET_CLIENTS_HYPERFLEET_API_BASE_URL="+w.apiURL)

		if s.useRabbitMQ {
			args = append(args, "--broker-config", "broker.yaml")
			env = append(env, "HYPERFLEET_EVENTS_SOURCE=broker", "HYPERFLEET_CLIENTS_BROKER_TOPIC="+of[1],
				"HYPERFLEET_CLIENTS_BROKER_SUBSCRIPTION_ID="+of[0])
		}

		w.addProgram(name, "HYPERFLEET_", args, env...)
	}

	if s.checkout != "" {
		for _, p := range w.programs {
			p.path = filepath.Join(s.checkout, "bin", "hyperfleet-platform")
		}
	}
}

// prefixIntervals returns the intervals with the prefix of a program's environment variables.
func (s options) prefixIntervals(prefix string) []string {
	out := make([]string, 0, len(s.intervals))
	for _, one := range s.intervals {
		out = append(out, prefix+one)
	}

	return out
}

// listPlatformPrograms returns the names of one program of each kind.
func (w *fixture) listPlatformPrograms() []string {
	all := []string{progAPI, progClusters, progPools}
	if w.broker != nil {
		all = append(all, progSentinel, progPoolsSentinel)
	}

	return all
}

// addProgram adds a program, with free addresses for its probes and metrics.
func (w *fixture) addProgram(name, prefix string, args []string, env ...string) {
	health, metrics := loopback.Address(w.t), loopback.Address(w.t)
	w.programs[name] = &program{
		args: args, health: "http://" + health, metrics: "http://" + metrics, log: filepath.Join(w.dir, name+".log"),
		env: append(append(os.Environ(), prefix+"HEALTH_ADDRESS="+health, prefix+"METRICS_ADDRESS="+metrics), env...),
	}
}

// copySamples copies the samples, and changes which adapters clusters require.
func (w *fixture) copySamples(s options) {
	from := samples
	if s.checkout != "" {
		from = filepath.Join(s.checkout, "deploy", "samples", "platform")
	}

	w.must(os.CopyFS(w.dir, os.DirFS(from)))

	if s.withAgents {
		text := w.readFile(filepath.Join(w.dir, "api.yaml"))
		w.writeFile("api.yaml", strings.Replace(text, "[cluster-space]", "[cluster-space, cluster-agent]", 1))
	}
}

// startPrograms starts programs, and returns when they are ready.
func (w *fixture) startPrograms(names ...string) {
	w.t.Helper()

	for _, name := range names {
		p := w.programs[name]

		process, err := procrun.Start(context.Background(), procrun.Spec{
			Name: name, Path: cmp.Or(p.path, binary), Args: p.args, Env: p.env, Dir: w.dir, LogPath: p.log,
		})
		w.must(err)

		p.process = process
	}

	for _, name := range names {
		p := w.programs[name]

		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		err := p.process.WaitReady(ctx, func(ctx context.Context) error { return checkReady(ctx, p.health+"/readyz") })

		cancel()

		if err != nil {
			w.t.Fatalf("start %s: %v", name, err)
		}
	}
}

// killPrograms kills programs, as a power failure would.
func (w *fixture) killPrograms(names ...string) {
	w.t.Helper()

	for _, name := range names {
		w.must(w.programs[name].process.Kill())
	}
}

func (w *fixture) stopAll() {
	for name, p := range w.programs {
		if p.process == nil {
			continue
		}

		if err := p.process.Stop(); err != nil {
			w.t.Errorf("stop %s: %v", name, err)
		}

		if w.t.Failed() {
			w.t.Logf("end of the log of %s:\n%s", name, p.process.LogTail())
		}
	}
}

// sumMetric returns the sum of a metric's series whose labels contain the text, or 0 if there are none.
func (w *fixture) sumMetric(name, metric, labels string) float64 {
	w.t.Helper()

	sum, err := scrape.Sum(w.t.Context(), w.programs[name].metrics+"/metrics", metric, labels)
	if !errors.Is(err, scrape.ErrNoSeries) {
		w.must(err)
	}

	return sum
}

func checkReady(ctx context.Context, url string) error {
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

// eventually waits until problem returns an empty string.
func (w *fixture) eventually(what string, problem func() string) {
	w.t.Helper()

	deadline := time.Now().Add(cmp.Or(w.timeout, waitTimeout))

	for {
		text := problem()
		if text == "" {
			w.logf("%s", what)

			return
		}

		if time.Now().After(deadline) {
			w.t.Fatalf("timed out waiting until %s: %s", what, text)
		}

		time.Sleep(pollInterval)
	}
}

func (w *fixture) must(err error) {
	w.t.Helper()

	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *fixture) writeFile(name, text string) {
	w.t.Helper()
	w.must(os.WriteFile(filepath.Join(w.dir, name), []byte(text), ownerOnly))
}

func (w *fixture) readFile(path string) string {
	w.t.Helper()

	data, err := os.ReadFile(path)
	w.must(err)

	return string(data)
}
