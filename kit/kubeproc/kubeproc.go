// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeproc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

const (
	etcdName       = "etcd"
	apiserverName  = "kube-apiserver"
	controllerName = "kube-controller-manager"

	startTimeout = 2 * time.Minute
	// portTries is how often the start is tried again when somebody else takes one of
	// the free ports that were picked.
	portTries = 3
)

// Options say what to run.
type Options struct {
	// Dir holds keys, data and logs. It is made, for the owner alone, and not removed.
	// Required.
	Dir string
	// BinDir holds the programs. Default: see procrun.FindBinaries.
	BinDir string
	// ControllerManager also runs kube-controller-manager with garbage collection,
	// namespace deletion, default service accounts, and the signing of certificates that
	// somebody has approved.
	ControllerManager bool
}

// Cluster is a running control plane.
type Cluster struct {
	options Options
	ca      *authority
	host    string
	etcd    string
	procs   []*procrun.Process
}

// Attach returns the control plane that another process started in the folder, and whose
// API server is the host: for its credentials. Its Stop does nothing.
func Attach(dir, host string) (*Cluster, error) {
	ca, err := readAuthority(filepath.Join(dir, caCert), filepath.Join(dir, caKey))
	if err != nil {
		return nil, fmt.Errorf("attach to control plane: %w", err)
	}

	return &Cluster{options: Options{Dir: dir}, ca: ca, host: host}, nil
}

// Start starts a control plane and returns when it serves. The processes end with
// Stop, with ctx, or with this process.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	names := []string{etcdName, apiserverName}
	if options.ControllerManager {
		names = append(names, controllerName)
	}

	if options.BinDir == "" {
		found, err := procrun.FindBinaries(names...)
		if err != nil {
			return nil, err
		}

		options.BinDir = found
	}

	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("start control plane: %w", err)
	}

	options.Dir = dir

	for try := 1; ; try++ {
		cluster, err := startOnce(ctx, options)
		if err == nil || !errors.Is(err, procrun.ErrEnded) || try == portTries {
			return cluster, err
		}
	}
}

func startOnce(parent context.Context, options Options) (*Cluster, error) {
	c := &Cluster{options: options}

	if err := c.prepare(); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeout(parent, startTimeout)
	defer cancel()

	err := c.startAll(parent, ctx)
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}

	return c, nil
}

// prepare makes the folder, with fresh keys and no data of an earlier run.
func (c *Cluster) prepare() error {
	const ownerOnly = 0o700

	if err := os.RemoveAll(c.path(etcdName)); err != nil {
		return fmt.Errorf("start control plane: %w", err)
	}

	if err := os.MkdirAll(c.path(etcdName), ownerOnly); err != nil {
		return fmt.Errorf("start control plane: %w", err)
	}

	ca, err := newAuthority()
	if err != nil {
		return err
	}

	server, err := ca.server()
	if err != nil {
		return err
	}

	private, public, err := signingKey()
	if err != nil {
		return err
	}

	key, err := ca.privateKey()
	if err != nil {
		return err
	}

	c.ca = ca

	return writeFiles(c.options.Dir, map[string][]byte{
		caCert: ca.pem, caKey: key, "server.crt": server.cert, "server.key": server.key, "sa.key": private, "sa.pub": public,
	})
}

// startAll starts the programs under the life of the parent context, and waits for
// them under ctx.
func (c *Cluster) startAll(parent, ctx context.Context) error {
	ports, err := procrun.Ports(4)
	if err != nil {
		return err
	}

	etcdURL := "http://" + loopback(ports[0])
	c.etcd = etcdURL

	err = c.start(parent, ctx, etcdName, etcdArgs(c.path(etcdName), etcdURL, "http://"+loopback(ports[1])),
		func(ctx context.Context) error { return probeHTTP(ctx, etcdURL+"/health") })
	if err != nil {
		return err
	}

	c.host = "https://" + loopback(ports[2])

	admin, err := c.AdminConfig()
	if err != nil {
		return err
	}

	err = c.start(parent, ctx, apiserverName, apiserverArgs(c.options.Dir, etcdURL, ports[2]),
		func(ctx context.Context) error { return probeReady(ctx, admin) })
	if err != nil || !c.options.ControllerManager {
		return err
	}

	kubeconfig := c.path("controller-manager.kubeconfig")
	if err := WriteKubeconfig(kubeconfig, admin); err != nil {
		return err
	}

	health := "https://" + loopback(ports[3]) + "/healthz"

	return c.start(parent, ctx, controllerName, controllerArgs(c.options.Dir, kubeconfig, ports[3]),
		func(ctx context.Context) error { return c.probeTLS(ctx, health) })
}

func (c *Cluster) start(
	parent, ctx context.Context, name string, args []string, ready func(context.Context) error,
) error {
	process, err := procrun.Start(parent, procrun.Spec{
		Name: name, Path: filepath.Join(c.options.BinDir, name), Args: args, Dir: c.options.Dir, LogPath: c.path(name + ".log"),
		Env: environment(),
	})
	if err != nil {
		return err
	}

	c.procs = append(c.procs, process)

	return process.WaitReady(ctx, ready)
}

// Stop ends the control plane; its data is left in the folder. A second call does
// nothing.
func (c *Cluster) Stop() error {
	var errs []error

	// The last one first: none may wait for another that is gone. Nothing here is kept,
	// so none is given time to end well except by the signal itself.
	for _, process := range slices.Backward(c.procs) {
		errs = append(errs, process.Kill())
	}

	return errors.Join(errs...)
}

// Host returns the API server's URL.
func (c *Cluster) Host() string { return c.host }

// EtcdURL returns etcd's URL, which asks for no credentials.
func (c *Cluster) EtcdURL() string { return c.etcd }

// PIDs returns the processes' ids.
func (c *Cluster) PIDs() []int {
	pids := make([]int, 0, len(c.procs))
	for _, process := range c.procs {
		pids = append(pids, process.PID())
	}

	return pids
}

// LogPaths returns the log files of the programs that were started.
func (c *Cluster) LogPaths() []string {
	paths := make([]string, 0, len(c.procs))
	for _, process := range c.procs {
		paths = append(paths, c.path(process.Name()+".log"))
	}

	return paths
}

// AdminConfig returns the configuration of a client that may do everything.
func (c *Cluster) AdminConfig() (*rest.Config, error) {
	return c.UserConfig("hyperfleet-admin", "system:masters")
}

// UserConfig returns the configuration of a client that the API server takes as the
// given user and groups. What it may do, RBAC says.
func (c *Cluster) UserConfig(user string, groups ...string) (*rest.Config, error) {
	pair, err := c.ca.client(user, groups)
	if err != nil {
		return nil, err
	}

	config := c.config()
	config.CertData, config.KeyData = pair.cert, pair.key

	return config, nil
}

func (c *Cluster) config() *rest.Config {
	return &rest.Config{
		Host: c.host,
		// The server is the client's own: no client-side limit slows the tests down.
		QPS:             -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.pem},
	}
}

func (c *Cluster) path(name string) string { return filepath.Join(c.options.Dir, name) }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// environment has the programs collect garbage less often, where nobody says how often: they live
// for minutes, and a fifth of an API server's time was the collector's.
func environment() []string {
	const name = "GOGC"

	out := os.Environ()
	if os.Getenv(name) == "" {
		out = append(out, name+"=300")
	}

	return out
}
