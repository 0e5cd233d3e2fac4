// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"context"
	"fmt"
	"maps"
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

// startTimeout limits the start of an operator. It allows for ten thousand machines on a busy host.
const startTimeout = 3 * time.Minute

// operatorRunner runs operator processes one after the other with the same configuration.
type operatorRunner struct {
	fleet  *fleet.Fleet
	binary string
	dir    string
	// kubeconfig and configFile are the paths of the operator's files.
	kubeconfig, configFile string
	// webhookAddress and metricsAddress are the host:port of the operator's servers.
	webhookAddress, metricsAddress string
	// front forwards requests to the operator that runs.
	front http.Handler

	mu         sync.Mutex
	process    *procrun.Process
	startCount int
}

// noElection returns the configuration without leader election, for a single operator.
func noElection() map[string]any { return map[string]any{"enabled": false} }

// leaseDuration is the maximum time until another operator takes over from a leader that has stopped.
const leaseDuration = 6 * time.Second

// fastElection returns the leader election configuration of one of several operators. The election is
// faster than by default, but slow enough for a busy host.
func fastElection() map[string]any {
	return map[string]any{
		"enabled": true, "leaseDuration": leaseDuration.String(), "renewDeadline": "4s", "retryPeriod": "500ms",
	}
}

// newOperatorRunner writes the configuration of an operator with the areas. kube is the client
// configuration with which the operator calls the API server.
func newOperatorRunner(
	tb testing.TB, f *fleet.Fleet, binary string, election map[string]any, kube *rest.Config, areas ...string,
) *operatorRunner {
	tb.Helper()

	o := &operatorRunner{fleet: f, binary: binary, dir: tb.TempDir(), kubeconfig: f.Env.Kubeconfig(tb, kube)}
	o.webhookAddress, o.metricsAddress = loopback.Address(tb), loopback.Address(tb)
	o.configFile = filepath.Join(o.dir, "operator.yaml")

	text, err := yaml.Marshal(map[string]any{
		"apiVersion":     config.APIVersion,
		"kind":           config.KindOperatorConfig,
		"operatorUID":    f.OperatorUID,
		"namespace":      f.Namespace,
		"controllers":    areas,
		"log":            map[string]any{"level": "INFO", "format": "text"},
		"metrics":        map[string]any{"bindAddress": o.metricsAddress, "secure": false},
		"health":         map[string]any{"bindAddress": "0"},
		"webhooks":       map[string]any{"bindAddress": o.webhookAddress, "ownAuthority": false},
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

	if err := os.WriteFile(o.configFile, text, 0o600); err != nil {
		tb.Fatal(err)
	}

	target := &url.URL{Scheme: "http", Host: o.webhookAddress}
	o.front = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		},
	}
	tb.Cleanup(o.kill)

	return o
}

// configure sets keys of the configuration of the next start.
func (o *operatorRunner) configure(keys map[string]any) {
	o.fleet.T.Helper()

	text, err := os.ReadFile(o.configFile)
	if err != nil {
		o.fleet.T.Fatal(err)
	}

	all := map[string]any{}
	if err := yaml.Unmarshal(text, &all); err != nil {
		o.fleet.T.Fatal(err)
	}

	maps.Copy(all, keys)

	if text, err = yaml.Marshal(all); err != nil {
		o.fleet.T.Fatal(err)
	}

	if err := os.WriteFile(o.configFile, text, 0o600); err != nil {
		o.fleet.T.Fatal(err)
	}
}

// start starts an operator, and waits until its webhook server accepts connections.
func (o *operatorRunner) start(ctx context.Context) error {
	o.mu.Lock()
	o.startCount++
	number := o.startCount
	o.mu.Unlock()

	process, err := procrun.Start(context.WithoutCancel(ctx), procrun.Spec{
		Name: fmt.Sprintf("operator %d", number), Path: o.binary, Dir: o.dir, LogPath: o.logPath(number),
		Args: []string{"operator", "--config", o.configFile, "--kubeconfig", o.kubeconfig},
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
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", o.webhookAddress)
		if err != nil {
			return err
		}

		return conn.Close()
	})
}

func (o *operatorRunner) logPath(number int) string {
	return filepath.Join(o.dir, fmt.Sprintf("operator-%d.log", number))
}

// kill kills the operator with SIGKILL. It does nothing if no operator runs.
func (o *operatorRunner) kill() {
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

// freeze suspends the operator's process with SIGSTOP, as in a paused VM. thaw resumes the process.
func (o *operatorRunner) freeze() { o.signal(syscall.SIGSTOP) }
func (o *operatorRunner) thaw()   { o.signal(syscall.SIGCONT) }

func (o *operatorRunner) signal(signal syscall.Signal) {
	o.mu.Lock()
	defer o.mu.Unlock()

	if err := o.process.Signal(signal); err != nil {
		o.fleet.T.Error(err)
	}
}

// waitForExit waits until the operator has ended without being killed.
func (o *operatorRunner) waitForExit(ctx context.Context) error {
	o.mu.Lock()
	process := o.process
	o.mu.Unlock()

	select {
	case <-process.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the exit of %s: %w", process.Name(), ctx.Err())
	}
}

// Logs returns the logs of all operators.
func (o *operatorRunner) Logs() string {
	o.mu.Lock()
	defer o.mu.Unlock()

	var out strings.Builder

	for number := 1; number <= o.startCount; number++ {
		text, err := os.ReadFile(o.logPath(number))
		if err != nil {
			text = []byte(err.Error())
		}

		fmt.Fprintf(&out, "--- operator %d\n%s", number, text)
	}

	return out.String()
}
