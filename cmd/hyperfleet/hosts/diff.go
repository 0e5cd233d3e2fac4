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

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
	"github.com/hyperfleet/hyperfleet/hosts"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/push"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// query selects hosts by fleet and by name, or by the name that objectName returns. An empty field selects all.
// shouldProbe makes the command contact the hosts over SSH.
type query struct {
	fleet, host string
	shouldProbe bool
}

// hostDiff describes what the operator would do with one host.
type hostDiff struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Fleet     string `json:"fleet"`
	// Applied and Desired are the hashes of the applied and the desired configuration. Each is empty if there
	// is no such configuration.
	Applied string `json:"applied"`
	Desired string `json:"desired"`
	// OSVersion is the version of macOS that the host last reported, if any. DesiredOSVersion is the minimum
	// version that the fleet asks for; it is empty if the fleet does not manage the version.
	OSVersion        string `json:"osVersion,omitempty"`
	DesiredOSVersion string `json:"desiredOSVersion,omitempty"`
	// Action is what the operator would do: Nothing, FirstBoot, Update, Repair, OSUpdate, Wait, Terminal.
	Action string `json:"action"`
	// Reason tells why the operator would not act now.
	Reason string `json:"why,omitempty"`
	// Changes are the parts that differ from the last push.
	Changes []plan.Change `json:"changes"`
	// LostParts are the parts that no longer match the last push. With --probe they are what the host reports
	// now, otherwise what the host last reported.
	LostParts []string `json:"lost"`
	// Push lists the labels of the parts that the operator would push, in order.
	Push []string `json:"push"`
	// Error is the reason why the command could not compare the host.
	Error string `json:"error,omitempty"`
}

// placeholder is used in place of every secret.
const placeholder = "left out"

// placeholderSecrets returns a placeholder for each Secret. Digests contain no secrets, so the command does
// not need the values.
type placeholderSecrets struct{}

// Secret returns the placeholder and never an error.
func (placeholderSecrets) Secret(
	context.Context, string, infrav1.LocalSecretKeySelector, credential.Destination,
) (log.Secret, error) {
	return log.NewSecret(placeholder), nil
}

// diff returns the differences of all hosts that the query selects, sorted by kind and name. It returns an
// error if the query names a host that does not exist.
func (s *source) diff(ctx context.Context, area *hosts.Area, q query) ([]hostDiff, error) {
	kinds, err := area.Kinds(s.client)
	if err != nil {
		return nil, err
	}

	fleets, err := s.listFleets(ctx)
	if err != nil {
		return nil, err
	}

	out := []hostDiff{}

	for _, kind := range kinds {
		name, isOfKind := nameOfKind(kind, q.host)
		if !isOfKind {
			continue
		}

		list := kind.NewList()

		err := s.client.List(ctx, list, client.InNamespace(s.namespace))
		if meta.IsNoMatchError(err) {
			continue
		}

		if err != nil {
			return nil, fmt.Errorf("list %s in namespace %s: %w", kind.Name(), s.namespace, err)
		}

		items, err := machine.Items(list)
		if err != nil {
			return nil, err
		}

		for _, host := range items {
			if (q.fleet == "" || kind.FleetName(host) == q.fleet) && (name == "" || host.GetName() == name) {
				out = append(out, s.diffHost(ctx, area, kind, host, fleets[kind.FleetName(host)], q.shouldProbe))
			}
		}
	}

	if q.host != "" && len(out) == 0 {
		return nil, fmt.Errorf("host %s not found in namespace %s, or the host is not in the given fleet", q.host, s.namespace)
	}

	slices.SortStableFunc(out, func(a, b hostDiff) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })

	return out, nil
}

// nameOfKind returns the name in an argument NAME or KIND.GROUP/NAME. isOfKind is false for the name of another
// kind.
func nameOfKind(kind machine.Catalog, argument string) (name string, isOfKind bool) {
	name, isQualified := strings.CutPrefix(argument, objectName(kind.Name(), ""))

	return name, isQualified || !strings.Contains(name, "/")
}

// listFleets returns the fleets of the namespace by name. It returns an empty map if the CRD is not
// installed.
func (s *source) listFleets(ctx context.Context) (map[string]*infrav1.HostFleet, error) {
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

// diffHost returns the differences of one host. fleet is nil if the fleet of the host does not exist.
func (s *source) diffHost(
	ctx context.Context, area *hosts.Area, kind machine.Kind, host machine.Object, fleet *infrav1.HostFleet, shouldProbe bool,
) hostDiff {
	status, desired := host.Host(), machine.Desired(kind.Hash(), fleet)
	out := hostDiff{
		Kind: kind.Name(), Namespace: host.GetNamespace(), Name: host.GetName(), Fleet: kind.FleetName(host),
		Applied: status.HostConfigHash, Desired: desired.Hash, LostParts: append([]string{}, status.LostParts...),
		OSVersion: status.OSVersion, DesiredOSVersion: desired.OSVersion,
		Changes: []plan.Change{}, Push: []string{},
	}

	if out.Desired == "" {
		out.Action, out.Reason = string(drift.Nothing), "the configuration has no settings for this kind of host"

		return out
	}

	// The user of the host is in its status, and no digest contains the password or the kubeconfig.
	access := machine.Access{Password: log.NewSecret(placeholder), Kubeconfig: log.NewSecret(placeholder)}

	p, err := kind.RenderPlan(ctx, placeholderSecrets{}, host, access)
	if err == nil && shouldProbe {
		out.LostParts, err = s.probe(ctx, area, kind, host, p)
		status.LostParts = out.LostParts
	}

	if err != nil {
		out.Error = err.Error()

		return out
	}

	setAction(&out, area, status, desired, p)

	return out
}

// setAction sets the action, the changes and the parts to push, based on the decision of the operator's drift
// logic.
func setAction(out *hostDiff, area *hosts.Area, status *infrav1.HostStatus, desired drift.Desired, p plan.Plan) {
	var applied []plan.Digest
	for _, part := range status.Parts {
		applied = append(applied, plan.Digest{Label: part.Label, SHA256: part.SHA256})
	}

	d := drift.Decide(status, desired, area.Policy(), area.Clock.Now())
	out.Action = string(d.Action)
	out.Changes = append(out.Changes, plan.Diff(p.Digests(), applied)...)

	switch d.Action {
	case drift.Terminal:
		out.Reason = status.FailureReason + ": " + status.FailureMessage
	case drift.Wait:
		out.Reason = cmp.Or(status.ContactMessage, "the last update failed, and the operator retries later")
	default:
	}

	steps := p.DriftSteps(p.FindDrifted(applied, out.LostParts)...)

	switch d.NextAction {
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

// probe asks a host over SSH which parts no longer match the last push. It can run at the same time as a push
// of the operator. If no host key is pinned, or the host has not completed its first boot, it does not
// contact the host and returns the lost parts from the status.
func (s *source) probe(
	ctx context.Context, area *hosts.Area, kind machine.Kind, host machine.Object, p plan.Plan,
) ([]string, error) {
	status := host.Host()
	if status.SSHHostKey == "" || !status.Bootstrapped {
		return status.LostParts, nil // nothing was pushed to the host yet
	}

	access, err := kind.Access(ctx, machine.KubeSecrets{Reader: s.client}, host)
	if err != nil {
		return nil, err
	}

	conn, err := ssh.New(ssh.Options{Clock: area.Clock}).Dial(ctx, ssh.Target{
		Name: host.GetName(), Address: access.Address, Fallbacks: access.Fallbacks, User: access.User,
		PrivateKey: access.PrivateKey, Password: access.Password, Trust: kind.HostKeys(host).TrustOr(status.SSHHostKey),
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // the probe has its result by then

	states, err := push.Probe(ctx, conn, p, push.Options{Concurrent: true})
	if err != nil {
		return nil, err
	}

	return append([]string{}, p.LostParts(states)...), nil
}

// newList returns the list of the differences in all formats.
func newList(diffs []hostDiff) cli.Content {
	names := make([]string, 0, len(diffs))
	for _, d := range diffs {
		names = append(names, objectName(d.Kind, d.Name))
	}

	return cli.Content{Data: diffs, Names: names, Print: func(out io.Writer, isWide bool) error {
		if len(diffs) == 0 {
			_, err := fmt.Fprintln(out, "No hosts found.")

			return err
		}

		return cli.PrintTable(out, diffs, []screen.Column[hostDiff]{
			{Title: "HOST", Cell: func(d hostDiff) string { return d.Name }},
			{Title: "FLEET", Cell: func(d hostDiff) string { return d.Fleet }},
			{Title: "APPLIED", Cell: func(d hostDiff) string { return fmt.Sprintf("%.12s", d.Applied) }},
			{Title: "DESIRED", Cell: func(d hostDiff) string { return fmt.Sprintf("%.12s", d.Desired) }},
			{Title: "ACTION", Cell: func(d hostDiff) string { return cmp.Or(d.Action, "?") }},
			{Title: "KIND", Wide: true, Cell: func(d hostDiff) string { return d.Kind }},
			{Title: "MACOS", Wide: true, Cell: func(d hostDiff) string { return d.OSVersion }},
			{Title: "PARTS", Cell: formatParts},
		}, isWide)
	}}
}

// objectName returns the name of a host as kubectl prints it.
func objectName(kind, name string) string {
	return cli.ObjectName(infrav1.GroupVersion.Group, kind, name)
}

// formatParts describes the parts that differ or would be pushed, the macOS update, and the reason or the
// error.
func formatParts(d hostDiff) string {
	var out []string

	for _, change := range d.Changes {
		out = append(out, fmt.Sprintf("%s (%s)", change.Label, change.Kind))
	}

	for _, label := range d.LostParts {
		out = append(out, label+" (lost)")
	}

	for _, label := range d.Push {
		hasLabel := func(c plan.Change) bool { return c.Label == label }
		if !slices.ContainsFunc(d.Changes, hasLabel) && !slices.Contains(d.LostParts, label) {
			out = append(out, label)
		}
	}

	if drift.IsOlder(d.OSVersion, d.DesiredOSVersion) {
		out = append(out, fmt.Sprintf("macOS %s to %s", d.OSVersion, d.DesiredOSVersion))
	}

	cells := []string{cmp.Or(strings.Join(out, ", "), "-")}
	for _, message := range []string{d.Reason, d.Error} {
		if message != "" {
			cells = append(cells, message)
		}
	}

	return strings.Join(cells, "; ")
}
