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

// hold prints how to inspect the demo and keeps all processes running until an interrupt. If a process
// exits in the meantime, for example an operator that the user kills as an experiment, hold prints this
// and continues.
func (s *stack) hold(ctx context.Context) error {
	if s.operator == nil {
		return nil // the operator was not started
	}

	kubeconfig := filepath.Join(s.dir, "kubeconfig")
	if err := kubeproc.WriteKubeconfig(kubeconfig, s.admin); err != nil {
		return fmt.Errorf("hold: %w", err)
	}

	text, err := s.instructions(kubeconfig)
	if err != nil {
		return fmt.Errorf("hold: %w", err)
	}

	s.console.printText(text)

	for {
		_, err := s.pollUntil(ctx, jobsInterval, func(observation) bool { return false })

		var ended *processExitError
		if !errors.As(err, &ended) {
			break
		}

		s.console.printf("%v: see %s", err, s.logPath(ended.process.Name()))
	}

	s.console.printf("stopping all processes")

	return nil
}

// instructions returns commands and URLs to inspect the demo, and a command that queues another job.
func (s *stack) instructions(kubeconfig string) (string, error) {
	job, err := json.Marshal(control.JobSpec{
		Repo: repository, Labels: s.settings.platform.labels, Count: 1, Duration: s.options.Job,
	})
	if err != nil {
		return "", fmt.Errorf("encode a job: %w", err)
	}

	var out strings.Builder

	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }

	line("\nAll processes keep running. Press Ctrl-C to stop them.\n")
	line("  export KUBECONFIG=%s", kubeconfig)
	line("  kubectl -n %s get runnerpools,machineclaims,runnerjobs,hypervisorclusters", namespace)
	line("  %s jobs -n %s", s.programs.hyperfleet, namespace)
	line("  %s doctor", s.programs.hyperfleet)
	line("\nQueue another job:")
	line("  curl -d '%s' %s/sim/jobs\n", job, s.forge.url)
	line("  %-18s %s", "Kubernetes", s.kube.Host())

	s.describeHypervisor(line)
	line("  %-18s %s (control: %s)", s.settings.platform.title, s.settings.forgeURL, s.forge.url)
	line("  %-18s %s", "operator", s.ports.metricsURL())
	line("  %-18s %s", "logs", filepath.Join(s.dir, "logs"))

	return out.String(), nil
}

// describeHypervisor prints how to reach the hypervisor.
func (s *stack) describeHypervisor(line func(format string, args ...any)) {
	if s.settings.libvirt != nil {
		for _, host := range s.settings.libvirt.hosts {
			line("  %-18s virsh -c '%s' list --all", host.Name, host.URI)
		}

		return
	}

	details := fmt.Sprintf("token: Secret %s/%s", namespace, secretProxmox)
	if sim, isSimulated := s.hypervisor.(*hypervisorSim); isSimulated {
		details += "; control: " + sim.control.URL
	}

	line("  %-18s %s (%s)", "Proxmox VE", s.settings.proxmoxURL, details)
}
