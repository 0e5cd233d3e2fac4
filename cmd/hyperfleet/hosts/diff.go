// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/hosts"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/push"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// query chooses hosts.
type query struct {
	fleet, host string
	probe       bool
}

// hostDiff is what would happen to one host.
type hostDiff struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Fleet     string `json:"fleet"`
	// Applied and Desired are hashes; empty for none.
	Applied string `json:"applied"`
	Desired string `json:"desired"`
	// OSVersion is the version of macOS that the host said last; empty for none. DesiredOSVersion
	// is what its fleet asks for at least; empty where it leaves that alone.
	OSVersion        string `json:"osVersion,omitempty"`
	DesiredOSVersion string `json:"desiredOSVersion,omitempty"`
	// Action is what the operator would do: Nothing, FirstBoot, Update, Repair, OSUpdate, Wait, Terminal.
	Action string `json:"action"`
	// Why it would not do it at once.
	Why string `json:"why,omitempty"`
	// Changes are the parts that differ from what was pushed last.
	Changes []plan.Change `json:"changes"`
	// Lost are parts that the host has not as they were left: as it said now with --probe,
	// else as it said last.
	Lost []string `json:"lost"`
	// Push are the labels of the parts that would be pushed, in order.
	Push []string `json:"push"`
	// Error says why it can't be told.
	Error string `json:"error,omitempty"`
}

// leftOut stands for a secret.
const leftOut = "left out"

// noSecrets stands for Secrets where nothing is sent: what is secret is in no digest.
type noSecrets struct{}

// Secret gives something that is none.
func (noSecrets) Secret(context.Context, string, infrav1.LocalSecretKeySelector, credential.Sent) (log.Secret, error) {
	return log.NewSecret(leftOut), nil
}

// diff looks at all hosts that are asked for, in the order of their kinds and names.
func (s *source) diff(ctx context.Context, area *hosts.Area, q query) ([]hostDiff, error) {
	kinds, err := area.Kinds(s.client)
	if err != nil {
		return nil, err
	}

	fleets, err := s.fleets(ctx)
	if err != nil {
		return nil, err
	}

	out := []hostDiff{}

	for _, kind := range kinds {
		list := kind.NewList()

		err := s.client.List(ctx, list, client.InNamespace(s.namespace))
		if meta.IsNoMatchError(err) {
			continue
		}

		if err != nil {
			return nil, fmt.Errorf("list %s in namespace %s: %w", kind.Name(), s.namespace, err)
		}

		found, err := machine.Items(list)
		if err != nil {
			return nil, err
		}

		for _, host := range found {
			if (q.fleet == "" || kind.FleetName(host) == q.fleet) && (q.host == "" || host.GetName() == q.host) {
				out = append(out, s.one(ctx, area, kind, host, fleets[kind.FleetName(host)], q.probe))
			}
		}
	}

	if q.host != "" && len(out) == 0 {
		return nil, fmt.Errorf("there is no host %s in namespace %s, or not in that fleet", q.host, s.namespace)
	}

	slices.SortStableFunc(out, func(a, b hostDiff) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })

	return out, nil
}

// fleets are those of the namespace, by their names.
func (s *source) fleets(ctx context.Context) (map[string]*infrav1.HostFleet, error) {
	var list infrav1.HostFleetList

	err := s.client.List(ctx, &list, client.InNamespace(s.namespace))
	if err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("list fleets in namespace %s: %w", s.namespace, err)
	}

	out := map[string]*infrav1.HostFleet{}
	for i := range list.Items {
		out[list.Items[i].Name] = &list.Items[i]
	}

	return out, nil
}

// one looks at one host of a fleet, nil where that is not there.
func (s *source) one(
	ctx context.Context, area *hosts.Area, kind machine.Kind, host machine.Object, fleet *infrav1.HostFleet, probe bool,
) hostDiff {
	status, desired := host.Host(), machine.Desired(kind.Hash(), fleet)
	out := hostDiff{
		Kind: kind.Name(), Namespace: host.GetNamespace(), Name: host.GetName(), Fleet: kind.FleetName(host),
		Applied: status.HostConfigHash, Desired: desired.Hash, Lost: append([]string{}, status.LostParts...),
		OSVersion: status.OSVersion, DesiredOSVersion: desired.OSVersion,
		Changes: []plan.Change{}, Push: []string{},
	}

	if out.Desired == "" {
		out.Action, out.Why = string(drift.Nothing), "the configuration has nothing for this kind of host"

		return out
	}

	// The user of a host is on its record, and its password in no digest.
	p, err := kind.Plan(ctx, noSecrets{}, host, machine.Access{Password: log.NewSecret(leftOut), Kubeconfig: log.NewSecret(leftOut)})
	if err == nil && probe {
		out.Lost, err = s.probe(ctx, area, kind, host, p)
		status.LostParts = out.Lost
	}

	if err != nil {
		out.Error = err.Error()

		return out
	}

	decide(&out, area, status, desired, p)

	return out
}

func decide(out *hostDiff, area *hosts.Area, status *infrav1.HostStatus, desired drift.Desired, p plan.Plan) {
	var has []plan.Digest
	for _, part := range status.Parts {
		has = append(has, plan.Digest{Label: part.Label, SHA256: part.SHA256})
	}

	d := drift.Decide(status, desired, area.Policy(), area.Clock.Now())
	out.Action = string(d.Do)
	out.Changes = append(out.Changes, plan.Diff(p.Digests(), has)...)

	switch d.Do {
	case drift.Terminal:
		out.Why = status.FailureReason + ": " + status.FailureMessage
	case drift.Wait:
		out.Why = cmp.Or(status.ContactMessage, "it was refused, and is tried again later")
	default:
	}

	lost := map[string]plan.State{}
	for _, label := range out.Lost {
		lost[label] = plan.Lost
	}

	steps := p.DriftSteps(push.Drifted(p, has, lost)...)

	switch d.Next {
	case drift.FirstBoot:
		steps = p.FirstBootSteps()
	case drift.Nothing, drift.OSUpdate:
		steps = nil
	default:
	}

	for _, part := range steps {
		out.Push = append(out.Push, part.Label)
	}
}

// probe asks a host which parts it has lost, beside what the operator does there. Its key
// has to be pinned already.
func (s *source) probe(
	ctx context.Context, area *hosts.Area, kind machine.Kind, host machine.Object, p plan.Plan,
) ([]string, error) {
	status := host.Host()
	if status.SSHHostKey == "" || !status.Bootstrapped {
		return status.LostParts, nil // it has nothing that it could have lost
	}

	access, err := kind.Access(ctx, machine.KubeSecrets{Reader: s.client}, host)
	if err != nil {
		return nil, err
	}

	conn, err := ssh.New(ssh.Options{Clock: area.Clock}).Dial(ctx, ssh.Target{
		Name: host.GetName(), Address: access.Address, Fallbacks: access.Fallbacks, User: access.User,
		PrivateKey: access.PrivateKey, Password: access.Password, Trust: kind.HostKeys(host).Or(status.SSHHostKey),
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // what matters has been heard

	states, err := push.Probe(ctx, conn, p, push.Options{Clock: area.Clock, Beside: true})
	if err != nil {
		return nil, err
	}

	return append([]string{}, p.LostParts(states)...), nil
}

// write prints what was found.
func write(w io.Writer, found []hostDiff, form string) error {
	if form == cli.OutputJSON {
		return cli.JSON(w, found)
	}

	if len(found) == 0 {
		_, err := fmt.Fprintln(w, "there are no hosts")

		return err
	}

	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "HOST\tFLEET\tHAS\tSHOULD HAVE\tACTION\tPARTS")

	for _, d := range found {
		fmt.Fprintf(table, "%s\t%s\t%.12s\t%.12s\t%s\t%s\n", d.Name, d.Fleet,
			cmp.Or(d.Applied, "-"), cmp.Or(d.Desired, "-"), cmp.Or(d.Action, "?"), words(d))
	}

	return table.Flush()
}

// words says which parts, and what about them.
func words(d hostDiff) string {
	var out []string

	for _, change := range d.Changes {
		out = append(out, fmt.Sprintf("%s (%s)", change.Label, change.What))
	}

	for _, label := range d.Lost {
		out = append(out, label+" (lost)")
	}

	for _, label := range d.Push {
		named := func(c plan.Change) bool { return c.Label == label }
		if !slices.ContainsFunc(d.Changes, named) && !slices.Contains(d.Lost, label) {
			out = append(out, label)
		}
	}

	if drift.Older(d.OSVersion, d.DesiredOSVersion) {
		out = append(out, fmt.Sprintf("macOS %s to %s", d.OSVersion, d.DesiredOSVersion))
	}

	all := []string{cmp.Or(strings.Join(out, ", "), "-")}
	for _, note := range []string{d.Why, d.Error} {
		if note != "" {
			all = append(all, strings.Join(strings.Fields(note), " "))
		}
	}

	return strings.Join(all, "; ")
}
