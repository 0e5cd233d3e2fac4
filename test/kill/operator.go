// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// startTimeout is what a start takes at most, with ten thousand machines on a busy machine.
const startTimeout = 3 * time.Minute

// operators runs one operator process after the other, each as the one before it.
type operators struct {
	fleet  *fleet.Fleet
	binary string
	dir    string
	// kubeconfig and file are the operator's.
	kubeconfig, file string
	// address is where it takes webhooks, metrics where it tells of itself.
	address, metrics string
	// front passes on to the operator that runs.
	front http.Handler

	mu      sync.Mutex
	process *procrun.Process
	started int
}

// alone is the leader election of an operator that is the only one.
func alone() map[string]any { return map[string]any{"enabled": false} }

// electionPatience is what it takes at most until a leader that is gone has a successor.
const electionPatience = 6 * time.Second

// elected is the leader election of one of several operators: quicker than by default, and
// slow enough for a busy machine.
func elected() map[string]any {
	return map[string]any{
		"enabled": true, "leaseDuration": electionPatience.String(), "renewDeadline": "4s", "retryPeriod": "500ms",
	}
}

// newOperators writes down what an operator of the areas needs; kube is how it comes to the
// API server.
func newOperators(
	tb testing.TB, f *fleet.Fleet, binary string, election map[string]any, kube *rest.Config, areas ...string,
) *operators {
	tb.Helper()

	o := &operators{fleet: f, binary: binary, dir: tb.TempDir(), kubeconfig: f.Env.Kubeconfig(tb, kube)}
	o.address, o.metrics = loopback.Address(tb), loopback.Address(tb)
	o.file = filepath.Join(o.dir, "operator.yaml")

	text, err := yaml.Marshal(map[string]any{
		"apiVersion":     config.APIVersion,
		"kind":           config.KindOperatorConfig,
		"operatorUID":    f.OperatorUID,
		"namespace":      f.Namespace,
		"controllers":    areas,
		"log":            map[string]any{"level": "INFO", "format": "text"},
		"metrics":        map[string]any{"bindAddress": o.metrics, "secure": false},
		"health":         map[string]any{"bindAddress": "0"},
		"webhooks":       map[string]any{"bindAddress": o.address, "ownAuthority": false},
		"guest":          map[string]any{"url": f.Front.URL},
		"leaderElection": election,
		"runners": map[string]any{
			"clusterInterval":  f.Runners.ClusterInterval.String(),
			"templateInterval": f.Runners.TemplateInterval.String(),
			"orphanInterval":   f.Runners.OrphanInterval.String(),
			"orphanAge":        f.Runners.OrphanAge.String(),
			"taskInterval":     f.Runners.TaskInterval.String(),
			"listInterval":     f.Runners.ListInterval.String(),
			"jobSilence":       f.Runners.JobSilence.String(),
			"platformURLs":     f.Runners.PlatformURLs,
		},
	})
	if err != nil {
		tb.Fatal(err)
	}

	if err := os.WriteFile(o.file, text, 0o600); err != nil {
		tb.Fatal(err)
	}

	target := &url.URL{Scheme: "http", Host: o.address}
	o.front = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		},
	}
	tb.Cleanup(o.kill)

	return o
}

// start starts an operator and waits until it takes webhooks.
func (o *operators) start(ctx context.Context) error {
	o.mu.Lock()
	o.started++
	number := o.started
	o.mu.Unlock()

	process, err := procrun.Start(context.WithoutCancel(ctx), procrun.Spec{
		Name: fmt.Sprintf("operator %d", number), Path: o.binary, Dir: o.dir, LogPath: o.logPath(number),
		Args: []string{"operator", "--config", o.file, "--kubeconfig", o.kubeconfig},
		Env:  []string{"HOME=" + o.dir, "PATH=" + os.Getenv("PATH")},
	})
	if err != nil {
		return err
	}

	o.mu.Lock()
	o.process = process
	o.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	return process.WaitReady(ctx, func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", o.address)
		if err != nil {
			return err
		}

		return conn.Close()
	})
}

func (o *operators) logPath(number int) string {
	return filepath.Join(o.dir, fmt.Sprintf("operator-%d.log", number))
}

// kill ends the operator that runs with SIGKILL.
func (o *operators) kill() {
	o.mu.Lock()
	process := o.process
	o.process = nil
	o.mu.Unlock()

	if process == nil {
		return
	}

	if err := process.Kill(); err != nil {
		o.fleet.T.Error(err)
	}
}

// freeze stops the operator that runs without ending it, as a machine that swaps or a
// paused VM does; thaw lets it go on where it was.
func (o *operators) freeze() { o.signal(syscall.SIGSTOP) }
func (o *operators) thaw()   { o.signal(syscall.SIGCONT) }

func (o *operators) signal(signal syscall.Signal) {
	o.mu.Lock()
	defer o.mu.Unlock()

	if err := o.process.Signal(signal); err != nil {
		o.fleet.T.Error(err)
	}
}

// ended waits until the operator has ended by itself.
func (o *operators) ended(ctx context.Context) error {
	o.mu.Lock()
	process := o.process
	o.mu.Unlock()

	select {
	case <-process.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s: %w", process.Name(), ctx.Err())
	}
}

// Logs are what the operators have written.
func (o *operators) Logs() string {
	o.mu.Lock()
	defer o.mu.Unlock()

	var out strings.Builder

	for number := 1; number <= o.started; number++ {
		text, err := os.ReadFile(o.logPath(number))
		if err != nil {
			text = []byte(err.Error())
		}

		fmt.Fprintf(&out, "--- operator %d\n%s", number, text)
	}

	return out.String()
}
