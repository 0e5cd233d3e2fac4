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

// stack is everything that runs, in one working directory.
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

	hypervisor hypervisorView
	forge      *forgeSim
	operator   *procrun.Process
	setting    setting
	ports      ports
	gate       *gate // nil unless machines are real

	procs []*procrun.Process
	ended chan *procrun.Process

	// Set as the run goes on.
	tracker    *tracker
	unfollow   context.CancelFunc
	endKube    context.CancelFunc
	baseline   hypervisorState
	forgeCalls map[string]int // before the first job
	kubeBefore kubeWrites     // before the first job
	queuedAny  bool
	cleanAt    time.Time
	left       moments
	violations []string
	// lastConsole is that of the VM started last, kept for who must find a fault.
	lastConsole consoleTail
}

const (
	ownerOnlyDir  = 0o700
	ownerOnlyFile = 0o600
)

func newStack(o Options, con *console, c clock.WithTicker) (*stack, error) {
	chosen, ok := platformNamed(o.Platform)
	if !ok {
		return nil, fmt.Errorf("there is no platform %q: choose one of %s", o.Platform, platformNames())
	}

	found, err := findPrograms()
	if err != nil {
		return nil, err
	}

	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register API types: %w", err)
	}

	dir, err := os.MkdirTemp("", "hyperfleet-demo-")
	if err != nil {
		return nil, fmt.Errorf("make working directory: %w", err)
	}

	return &stack{
		options: o, setting: setting{platform: chosen}, dir: dir, programs: found, console: con, clock: c, scheme: scheme,
		ended: make(chan *procrun.Process, maxProcs),
	}, nil
}

// webhookURL is where the platform sends its webhooks to.
func (s *stack) webhookURL() string {
	return s.hooksURL() + "/webhooks/" + s.setting.platform.name
}

// maxProcs is more than the demo starts.
const maxProcs = 8

// startStep is a part of the start, told to people.
type startStep struct {
	title string
	do    func(context.Context) (string, error)
}

// start brings everything up and returns once the pool can take jobs.
func (s *stack) start(ctx context.Context) error {
	steps := []startStep{
		{"start etcd and kube-apiserver", s.startKube},
		{"apply CRDs and RBAC", s.applyManifests},
		s.hypervisorStep(),
		{"start the " + s.setting.platform.title + " simulator", s.startForge},
		{"start the operator", s.startOperator},
		{"apply Secrets, HypervisorCluster, HypervisorMachineTemplate and RunnerPool", s.applyObjects},
		{"wait until they are Ready", s.waitReady},
	}
	if s.options.CompareWarm {
		steps = append(steps, startStep{"wait until the pools are warm", s.waitWarm})
	}

	for _, step := range steps {
		if err := s.console.step(step.title, func() (string, error) { return step.do(ctx) }); err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}

	return nil
}

func (s *stack) hypervisorStep() startStep {
	if s.options.onReal() {
		return startStep{"find the Proxmox VE", s.startReal}
	}

	return startStep{"start the Proxmox VE simulator", s.startHypervisor}
}

// stop ends everything, the last started first, and removes the working directory
// unless it is to be kept.
func (s *stack) stop(keep bool) error {
	var errs []error

	for _, process := range slices.Backward(s.procs) {
		errs = append(errs, process.Stop())
	}

	if s.hypervisor != nil {
		errs = append(errs, s.hypervisor.close())
	}

	errs = append(errs, s.gate.close())

	if s.kube != nil {
		errs = append(errs, s.kube.Stop())
		s.endKube()
	}

	if !keep {
		errs = append(errs, os.RemoveAll(s.dir))
	}

	return errors.Join(errs...)
}

func (s *stack) startKube(ctx context.Context) (string, error) {
	// The control plane outlives the context, once it is up: the objects are looked at
	// after a failure.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	started := context.AfterFunc(ctx, end)

	kube, err := kubeproc.Start(life, kubeproc.Options{
		Dir: filepath.Join(s.dir, "kube"), BinDir: s.programs.kube,
	})

	started()

	if err != nil {
		end()

		return "", fmt.Errorf("start control plane: %w", err)
	}

	s.kube, s.endKube = kube, end

	if s.admin, err = kube.AdminConfig(); err != nil {
		return "", fmt.Errorf("make admin credentials: %w", err)
	}

	s.admin.Timeout = callTimeout

	if s.client, err = client.New(s.admin, client.Options{Scheme: s.scheme}); err != nil {
		return "", fmt.Errorf("make client: %w", err)
	}

	return kube.Host(), nil
}

// applyManifests writes the embedded manifests out and applies them.
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

	return writePrivate(to, data)
}

func writePrivate(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), ownerOnlyDir); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}

	if err := os.WriteFile(path, data, ownerOnlyFile); err != nil {
		return fmt.Errorf("write file: %w", err)
	}

	return nil
}

// launch starts one program with a log of its own, and watches for its end.
func (s *stack) launch(ctx context.Context, name, path string, args ...string) (*procrun.Process, error) {
	// Stopped by stop, in order, and not all at once by an interrupt.
	process, err := procrun.Start(context.WithoutCancel(ctx), procrun.Spec{
		Name: name, Path: path, Args: args, Dir: s.dir, LogPath: s.logPath(name), Env: environment(), Grace: stopGrace,
	})
	if err != nil {
		return nil, fmt.Errorf("launch: %w", err)
	}

	s.procs = append(s.procs, process)

	go func() {
		<-process.Done()
		s.ended <- process
	}()

	return process, nil
}

// awaitReady waits for the probe's nil. A process that ended instead is to blame, and its
// log is told with the blame.
func awaitReady(ctx context.Context, process *procrun.Process, probe func(context.Context) error) error {
	err := process.WaitReady(ctx, probe)
	if errors.Is(err, procrun.ErrEnded) {
		return &endedError{process: process}
	}

	return err
}

func (s *stack) logPath(name string) string { return filepath.Join(s.dir, "logs", name+".log") }

// environment gives children what they need to run and nothing that would configure
// them otherwise than their flags do.
func environment() []string {
	var out []string

	for _, name := range []string{"PATH", "HOME", "TMPDIR", "LANG"} {
		if value, ok := os.LookupEnv(name); ok {
			out = append(out, name+"="+value)
		}
	}

	return out
}

// newSecret makes a secret that is good for this run.
func newSecret() string { return rand.Text() + rand.Text() }
