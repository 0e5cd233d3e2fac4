// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

// stack has all processes of a run and its state. All its files are in one working directory.
type stack struct {
	options  Options
	dir      string
	programs programs
	console  *console
	clock    clock.WithTicker

	scheme *runtime.Scheme
	kube   *kubeproc.Cluster
	admin  *rest.Config
	client client.Client

	hypervisor    hypervisorObserver
	forge         *forgeSim
	operator      *procrun.Process
	settings      demoSettings
	ports         ports
	machineAccess *machineAccess // nil unless machines are real

	processes       []*procrun.Process
	exitedProcesses chan *procrun.Process

	// The following fields are set during the run.
	tracker       *tracker
	stopTracker   context.CancelFunc
	stopKube      context.CancelFunc
	baseline      hypervisorState
	forgeBaseline map[string]int // before the first job
	kubeBaseline  kubeWrites     // before the first job
	hasQueuedJobs bool
	cleanTime     time.Time
	leftovers     observation
	violations    []string
	// lastConsole is the console output of the VM with the highest ID. It is printed after a failure.
	lastConsole consoleLog
}

const (
	ownerOnlyDir  = 0o700
	ownerOnlyFile = 0o600
)

func newStack(o Options, con *console, clk clock.WithTicker) (*stack, error) {
	chosen, ok := findPlatform(o.Platform)
	if !ok {
		return nil, fmt.Errorf("unknown platform %q: use one of %s", o.Platform, platformNames())
	}

	programPaths, err := findPrograms()
	if err != nil {
		return nil, err
	}

	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register API types: %w", err)
	}

	dir, err := os.MkdirTemp("", "hyperfleet-demo-")
	if err != nil {
		return nil, fmt.Errorf("create working directory: %w", err)
	}

	return &stack{
		options: o, settings: demoSettings{platform: chosen}, dir: dir, programs: programPaths, console: con, clock: clk,
		scheme:          scheme,
		exitedProcesses: make(chan *procrun.Process, maxProcesses),
	}, nil
}

// webhookURL returns the URL to which the CI platform sends webhooks.
func (s *stack) webhookURL() string {
	return s.webhookBaseURL() + "/webhooks/" + s.settings.platform.name
}

// maxProcesses is larger than the number of processes that the demo starts.
const maxProcesses = 8

// startStep is one step of the start, with a title for the progress output.
type startStep struct {
	title string
	run   func(context.Context) (string, error)
}

// start starts all processes, applies all objects, and returns when the pool is ready for jobs.
func (s *stack) start(ctx context.Context) error {
	steps := []startStep{
		{"start etcd and kube-apiserver", s.startKube},
		{"apply CRDs and RBAC", s.applyManifests},
		s.hypervisorStep(),
		{"start the " + s.settings.platform.title + " simulator", s.startForge},
		{"start the operator", s.startOperator},
		{"apply Secrets, HypervisorCluster, HypervisorMachineTemplate and RunnerPool", s.applyObjects},
		{"wait until the objects are Ready", s.waitForReady},
	}
	if s.options.CompareWarm {
		steps = append(steps, startStep{"wait until the pools are warm", s.waitForWarmMachines})
	}

	for _, step := range steps {
		if err := s.console.runStep(step.title, func() (string, error) { return step.run(ctx) }); err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}

	return nil
}

func (s *stack) hypervisorStep() startStep {
	switch {
	case s.options.isRealHypervisor():
		return startStep{"find the Proxmox VE", s.connectRealHypervisor}
	case s.options.isLibvirt():
		return startStep{"start libvirtd, and copy the image of the machines", s.startLibvirt}
	}

	return startStep{"start the Proxmox VE simulator", s.startHypervisor}
}

// stop stops all processes in the reverse order of their start, and removes the working directory unless
// keepsFiles is true.
func (s *stack) stop(keepsFiles bool) error {
	var errs []error

	for _, process := range slices.Backward(s.processes) {
		errs = append(errs, process.Stop())
	}

	if s.hypervisor != nil {
		errs = append(errs, s.hypervisor.close())
	}

	errs = append(errs, s.machineAccess.close())

	if s.kube != nil {
		errs = append(errs, s.kube.Stop())
		s.stopKube()
	}

	if !keepsFiles {
		errs = append(errs, os.RemoveAll(s.dir))
	}

	return errors.Join(errs...)
}

func (s *stack) startKube(ctx context.Context) (string, error) {
	// After its start, the control plane keeps running when ctx is done, because the demo reads objects
	// after a failure.
	kubeCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stopPropagation := context.AfterFunc(ctx, cancel)

	kube, err := kubeproc.Start(kubeCtx, kubeproc.Options{
		Dir: filepath.Join(s.dir, "kube"), BinDir: s.programs.kube,
	})

	stopPropagation()

	if err != nil {
		cancel()

		return "", fmt.Errorf("start control plane: %w", err)
	}

	s.kube, s.stopKube = kube, cancel

	if s.admin, err = kube.AdminConfig(); err != nil {
		return "", fmt.Errorf("create admin credentials: %w", err)
	}

	s.admin.Timeout = callTimeout

	if s.client, err = client.New(s.admin, client.Options{Scheme: s.scheme}); err != nil {
		return "", fmt.Errorf("create client: %w", err)
	}

	return kube.Host(), nil
}

// applyManifests writes the embedded manifests to the working directory and applies them.
func (s *stack) applyManifests(ctx context.Context) (string, error) {
	dir := filepath.Join(s.dir, "manifests")
	count := 0

	for _, source := range manifests() {
		err := fs.WalkDir(source, ".", func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}

			count++

			return copyFile(source, path, filepath.Join(dir, path))
		})
		if err != nil {
			return "", fmt.Errorf("write manifests: %w", err)
		}
	}

	if err := kubeproc.Apply(ctx, s.admin, dir); err != nil {
		return "", fmt.Errorf("apply manifests: %w", err)
	}

	return fmt.Sprintf("%d files", count), nil
}

func copyFile(source fs.FS, from, to string) error {
	data, err := fs.ReadFile(source, from)
	if err != nil {
		return fmt.Errorf("read %s: %w", from, err)
	}

	return writePrivateFile(to, data)
}

func writePrivateFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), ownerOnlyDir); err != nil {
		return fmt.Errorf("create folder: %w", err)
	}

	if err := os.WriteFile(path, data, ownerOnlyFile); err != nil {
		return fmt.Errorf("write file: %w", err)
	}

	return nil
}

// launch starts a process with its own log file. When the process exits, launch sends it to
// exitedProcesses.
func (s *stack) launch(ctx context.Context, name, path string, args ...string) (*procrun.Process, error) {
	// The context is never canceled, so that stop can stop the processes one after the other.
	process, err := procrun.Start(context.WithoutCancel(ctx), procrun.Spec{
		Name: name, Path: path, Args: args, Dir: s.dir, LogPath: s.logPath(name), Env: childEnvironment(), GracePeriod: stopGracePeriod,
	})
	if err != nil {
		return nil, fmt.Errorf("launch: %w", err)
	}

	s.processes = append(s.processes, process)

	go func() {
		<-process.Done()
		s.exitedProcesses <- process
	}()

	return process, nil
}

// waitForProbe waits until probe returns nil. If the process exits first, waitForProbe returns a
// processExitError.
func waitForProbe(ctx context.Context, process *procrun.Process, probe func(context.Context) error) error {
	err := process.WaitReady(ctx, probe)
	if errors.Is(err, procrun.ErrExited) {
		return &processExitError{process: process}
	}

	return err
}

func (s *stack) logPath(name string) string { return filepath.Join(s.dir, "logs", name+".log") }

// childEnvironment returns the environment of child processes. It has no variables that would override
// their flags.
func childEnvironment() []string {
	var out []string

	for _, name := range []string{"PATH", "HOME", "TMPDIR", "LANG"} {
		if value, ok := os.LookupEnv(name); ok {
			out = append(out, name+"="+value)
		}
	}

	return out
}

// generateSecret returns a random secret for this run.
func generateSecret() string { return rand.Text() + rand.Text() }
