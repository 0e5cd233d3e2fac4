// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"io"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

var (
	_ hypervisor.Terminal     = (*Provider)(nil)
	_ hypervisor.Executor     = (*Provider)(nil)
	_ hypervisor.ConsoleGuide = (*Provider)(nil)
)

// commandConsole is the command of KubeVirt's own client that opens a console.
const commandConsole = "virtctl console "

// DescribeConsole names the commands of KubeVirt's own client; see hypervisor.ConsoleGuide. A machine can be started again,
// because its run strategy is Manual. If its disk is a container disk, it starts with a new disk then.
func (p *Provider) DescribeConsole(ref hypervisor.MachineRef, _ string) string {
	name := hypervisor.MachineName(ref.Owner, ref.ID)

	return fmt.Sprintf("with an account of the KubeVirt cluster, run: %s%s --namespace %[3]s (if it is off: virtctl start %[2]s "+
		"--namespace %[3]s first)", commandConsole, name, p.config.Namespace)
}

// OpenTerminal refuses with the command of KubeVirt's own client, whose users Kubernetes authorizes.
func (p *Provider) OpenTerminal(ctx context.Context, ref hypervisor.MachineRef) (io.ReadWriteCloser, error) {
	return nil, p.referToVirtctl(ctx, ref, "open the console", commandConsole)
}

// Execute refuses, as OpenTerminal does. KubeVirt's API runs no commands in machines.
func (p *Provider) Execute(ctx context.Context, ref hypervisor.MachineRef, _ []string) (hypervisor.ExecResult, error) {
	return hypervisor.ExecResult{}, p.referToVirtctl(ctx, ref, "run a command", "virtctl ssh USER@vmi/")
}

// referToVirtctl returns an error that names a command for a machine that exists.
func (p *Provider) referToVirtctl(ctx context.Context, ref hypervisor.MachineRef, action, command string) error {
	m, err := p.Get(ctx, ref)
	if err != nil {
		return err
	}

	return hypervisor.Errorf(hypervisor.Rejected, "UseVirtctl", "%s of machine %s: the operator does not do this on KubeVirt: "+
		"with an account of the KubeVirt cluster, use: %s%s --namespace %s", action, m.Name, command, m.Name, p.config.Namespace)
}
