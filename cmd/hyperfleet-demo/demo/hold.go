// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// hold keeps everything that runs until an interrupt, and says how to look around. A
// program that ends meanwhile, such as an operator that somebody kills to see what becomes
// of it, is told and ends nothing else.
func (s *stack) hold(ctx context.Context) error {
	if s.operator == nil {
		return nil // it never came up
	}

	kubeconfig := filepath.Join(s.dir, "kubeconfig")
	if err := kubeproc.WriteKubeconfig(kubeconfig, s.admin); err != nil {
		return fmt.Errorf("hold: %w", err)
	}

	text, err := s.lookAround(kubeconfig)
	if err != nil {
		return fmt.Errorf("hold: %w", err)
	}

	s.console.text(text)

	for {
		_, err := s.until(ctx, jobsInterval, func(moments) bool { return false })

		var ended *endedError
		if !errors.As(err, &ended) {
			break
		}

		s.console.linef("%v: see %s", err, s.logPath(ended.process.Name()))
	}

	s.console.linef("stopping what was started")

	return nil
}

// lookAround says what there is to look at, and how to queue another job.
func (s *stack) lookAround(kubeconfig string) (string, error) {
	job, err := json.Marshal(control.JobSpec{
		Repo: repository, Labels: s.setting.platform.labels, Count: 1, Duration: s.options.Job,
	})
	if err != nil {
		return "", fmt.Errorf("write a job: %w", err)
	}

	var out strings.Builder

	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }

	line("\nEverything is kept running. Press Ctrl-C to stop it.\n")
	line("  export KUBECONFIG=%s", kubeconfig)
	line("  kubectl -n %s get runnerpools,machineclaims,runnerjobs,hypervisorclusters", namespace)
	line("  %s jobs -n %s", s.programs.hyperfleet, namespace)
	line("  %s doctor", s.programs.hyperfleet)
	line("\nQueue another job:")
	line("  curl -d '%s' %s/sim/jobs\n", job, s.forge.url)
	line("  %-18s %s", "Kubernetes", s.kube.Host())

	how := fmt.Sprintf("token: Secret %s/%s", namespace, secretProxmox)
	if sim, simulated := s.hypervisor.(*hypervisorSim); simulated {
		how += "; control: " + sim.control.URL
	}

	line("  %-18s %s (%s)", "Proxmox VE", s.setting.proxmoxURL, how)
	line("  %-18s %s (control: %s)", s.setting.platform.title, s.setting.forgeURL, s.forge.url)
	line("  %-18s http://%s/metrics", "operator", loopback(s.ports.metrics))
	line("  %-18s %s", "logs", filepath.Join(s.dir, "logs"))

	return out.String(), nil
}
