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

	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

const (
	etcdName       = "etcd"
	apiserverName  = "kube-apiserver"
	controllerName = "kube-controller-manager"

	startTimeout = 2 * time.Minute
	// maxPortAttempts is the maximum number of attempts to start the control plane. An attempt fails
	// if another program occupies one of the picked ports.
	maxPortAttempts = 3
)

// Options configure a control plane.
type Options struct {
	// Dir is the folder for keys, data and logs. Start creates it with access only for the owner, and
	// Stop does not delete it. Required.
	Dir string
	// BinDir is the folder with the programs. Default: see procrun.FindBinaries.
	BinDir string
	// ControllerManager also runs kube-controller-manager with garbage collection, namespace deletion,
	// default service accounts, quotas, and the signing of approved certificate signing requests.
	ControllerManager bool
}

// Cluster is a running control plane.
type Cluster struct {
	options Options
	ca      *authority
	// host and etcd are the URLs of the API server and of etcd.
	host, etcd string
	// ports are those of etcd for clients, of etcd for peers, of the API server and of the controller manager.
	ports []int
	procs []*procrun.Process
}

// Attach returns the control plane that another process started in the folder, so that the caller
// can create credentials for it. host is the URL of the API server. Stop of the returned Cluster
// does nothing.
func Attach(dir, host string) (*Cluster, error) {
	ca, err := readAuthority(filepath.Join(dir, caCert), filepath.Join(dir, caKey))
	if err != nil {
		return nil, fmt.Errorf("attach to control plane: %w", err)
	}

	return &Cluster{options: Options{Dir: dir}, ca: ca, host: host}, nil
}

// Start starts a control plane and returns when it is ready. The processes run until Stop is
// called, ctx ends, or this process ends.
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

	// Retry if a process exits, because another program may have taken its port.
	for attempt := 1; ; attempt++ {
		cluster, err := startOnce(ctx, options)
		if err == nil || !errors.Is(err, procrun.ErrExited) || attempt == maxPortAttempts {
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

// prepare creates the folder and new keys, and deletes the data of an earlier run.
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

	server, err := ca.newServerCertificate()
	if err != nil {
		return err
	}

	private, public, err := newSigningKey()
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

// Restart kills the programs, calls change with the data directory of etcd, and starts the programs again at the same
// addresses, as for a restore of etcd. The programs run until Stop is called or ctx ends.
func (c *Cluster) Restart(ctx context.Context, change func(dataDir string) error) error {
	if err := c.Stop(); err != nil {
		return fmt.Errorf("restart control plane: %w", err)
	}

	c.procs = nil

	if err := change(c.path(etcdName)); err != nil {
		return fmt.Errorf("restart control plane: %w", err)
	}

	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	return c.startPrograms(ctx, limited)
}

// startAll starts the programs at free ports with the lifetime of the parent context. ctx only limits the time
// until they are ready.
func (c *Cluster) startAll(parent, ctx context.Context) error {
	var err error
	if c.ports, err = procrun.PickPorts(4); err != nil {
		return err
	}

	return c.startPrograms(parent, ctx)
}

func (c *Cluster) startPrograms(parent, ctx context.Context) error {
	ports := c.ports
	etcdURL := "http://" + loopback(ports[0])
	c.etcd = etcdURL

	err := c.startProgram(parent, ctx, etcdName, etcdArgs(c.path(etcdName), etcdURL, "http://"+loopback(ports[1])),
		func(ctx context.Context) error { return probeHTTP(ctx, etcdURL+"/health") })
	if err != nil {
		return err
	}

	c.host = "https://" + loopback(ports[2])

	admin, err := c.AdminConfig()
	if err != nil {
		return err
	}

	err = c.startProgram(parent, ctx, apiserverName, apiserverArgs(c.options.Dir, etcdURL, ports[2]),
		func(ctx context.Context) error { return probeReady(ctx, admin) })
	if err != nil || !c.options.ControllerManager {
		return err
	}

	kubeconfig := c.path("controller-manager.kubeconfig")
	if err := WriteKubeconfig(kubeconfig, admin); err != nil {
		return err
	}

	health := "https://" + loopback(ports[3]) + "/healthz"

	return c.startProgram(parent, ctx, controllerName, controllerArgs(c.options.Dir, kubeconfig, ports[3]),
		func(ctx context.Context) error { return c.probeTLS(ctx, health) })
}

// startProgram starts a program with the lifetime of parent, and waits until it is ready or ctx ends.
func (c *Cluster) startProgram(
	parent, ctx context.Context, name string, args []string, ready func(context.Context) error,
) error {
	process, err := procrun.Start(parent, procrun.Spec{
		Name: name, Path: filepath.Join(c.options.BinDir, name), Args: args, Dir: c.options.Dir, LogPath: c.path(name + ".log"),
		Env: programEnv(),
	})
	if err != nil {
		return err
	}

	c.procs = append(c.procs, process)

	return process.WaitReady(ctx, ready)
}

// Stop stops the control plane and keeps the data in the folder. A second call does nothing.
func (c *Cluster) Stop() error {
	var errs []error

	// Stop in the reverse order, so that no program waits for a stopped one. The data is no longer
	// needed, so the processes are killed without a grace period.
	for _, process := range slices.Backward(c.procs) {
		errs = append(errs, process.Kill())
	}

	return errors.Join(errs...)
}

// Host returns the API server's URL.
func (c *Cluster) Host() string { return c.host }

// EtcdURL returns etcd's URL, which requires no credentials.
func (c *Cluster) EtcdURL() string { return c.etcd }

// PIDs returns the ids of the processes.
func (c *Cluster) PIDs() []int {
	pids := make([]int, 0, len(c.procs))
	for _, process := range c.procs {
		pids = append(pids, process.PID())
	}

	return pids
}

// LogPaths returns the paths of the log files of the started programs.
func (c *Cluster) LogPaths() []string {
	paths := make([]string, 0, len(c.procs))
	for _, process := range c.procs {
		paths = append(paths, c.path(process.Name()+".log"))
	}

	return paths
}

// AdminConfig returns the configuration of a client with all permissions.
func (c *Cluster) AdminConfig() (*rest.Config, error) {
	return c.UserConfig("hyperfleet-admin", "system:masters")
}

// UserConfig returns the configuration of a client that authenticates as the given user and groups.
// RBAC determines the permissions.
func (c *Cluster) UserConfig(user string, groups ...string) (*rest.Config, error) {
	pair, err := c.ca.newClientCertificate(user, groups)
	if err != nil {
		return nil, err
	}

	config := c.config()
	config.CertData, config.KeyData = pair.cert, pair.key

	return config, nil
}

func (c *Cluster) config() *rest.Config {
	config := &rest.Config{
		Host: c.host,
		// The client is the only user of the server, so client-side rate limiting would only slow the
		// tests down.
		QPS:             -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.pem},
	}
	credential.RetryUnreadyAdmission(config)

	return config
}

func (c *Cluster) path(name string) string { return filepath.Join(c.options.Dir, name) }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// programEnv returns the environment of the programs. If GOGC is not set, it sets GOGC so that the
// garbage collector runs less often. The programs run only for minutes, and the collector used a
// fifth of the API server's CPU time.
func programEnv() []string {
	const name = "GOGC"

	out := os.Environ()
	if os.Getenv(name) == "" {
		out = append(out, name+"=300")
	}

	return out
}
