// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package parts

import (
	_ "embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

var (
	//go:embed scripts/install.sh
	installBody string
	//go:embed scripts/secret.sh
	secretBody string
	//go:embed scripts/tailscale.sh
	tailscaleBody string
	//go:embed scripts/exporter.sh
	exporterBody string
)

// FileSpec is the path, mode and owner of a file on a host.
type FileSpec struct {
	// Path is absolute.
	Path string
	Mode fs.FileMode
	// Owner is "user:group".
	Owner string
}

// NewFile returns a part that is a file, unit or executable.
func NewFile(label string, kind plan.Kind, spec FileSpec, content plan.Content) plan.Part {
	return plan.Part{
		Label: label, Kind: kind, Schedule: plan.Always,
		Path: spec.Path, Mode: spec.Mode, Owner: spec.Owner,
		Content: content,
		Apply: plan.Render(installBody, append(spec.Vars(),
			plan.Var{Name: "SHA256", Value: content.SHA256()})...),
		Probe: RenderSumProbe(spec.Path, content.SHA256()) + "\n" + spec.renderProbe(),
	}
}

// NewSecret returns a part that is a secret file. The content belongs to one host and is in no
// digest. The probe therefore only checks that the file exists, is not empty, and has the right
// mode and owner.
func NewSecret(label string, spec FileSpec, secret log.Secret) plan.Part {
	return plan.Part{
		Label: label, Kind: plan.File, Schedule: plan.Always,
		Path: spec.Path, Mode: spec.Mode, Owner: spec.Owner,
		Secret: secret,
		Apply:  plan.Render(secretBody, append(spec.Vars(), plan.Var{Name: "END", Value: plan.EndMarker})...),
		Probe:  "test -s " + plan.Quote(spec.Path) + "\n" + spec.renderProbe(),
	}
}

// NewScript returns a part that is a script.
func NewScript(label, body, probe string, vars ...plan.Var) plan.Part {
	return plan.Part{
		Label: label, Kind: plan.Script, Schedule: plan.Always,
		Apply: plan.Render(body, vars...),
		Probe: probe,
	}
}

// OnlyOnFirstBoot returns the part with the schedule FirstBoot and without a probe. A lost part
// would not be applied again, so it is not probed.
func OnlyOnFirstBoot(part plan.Part) plan.Part {
	part.Schedule, part.Probe = plan.FirstBoot, ""

	return part
}

// Tailnet is the configuration of a host in its tailnet.
type Tailnet struct {
	// CLI is the path of the program tailscale.
	CLI string
	// Hostname is the name of the host, in the tailnet too.
	Hostname     string
	Tags         []string
	AcceptRoutes bool
	AuthKey      log.Secret
}

// NewTailscale returns a part that joins a host to its tailnet, or updates its settings there.
func NewTailscale(t Tailnet) plan.Part {
	part := NewScript("tailscale", tailscaleBody,
		plan.Quote(t.CLI)+" ip -4 | grep '^100\\.'",
		plan.Var{Name: "TAILSCALE", Value: t.CLI},
		plan.Var{Name: "TAGS", Value: strings.Join(t.Tags, ",")},
		plan.Var{Name: "ACCEPT_ROUTES", Value: strconv.FormatBool(t.AcceptRoutes)},
		plan.Var{Name: "TAILNET_NAME", Value: t.Hostname},
		plan.Var{Name: "END", Value: plan.EndMarker})
	part.Secret = t.AuthKey

	return part
}

// RenderExporterRun returns a program that starts node_exporter. The exporter listens on the
// address in the tailnet. If cli is empty, the host has no tailnet and the exporter listens on
// loopback.
func RenderExporterRun(exporter, cli string) plan.Content {
	return plan.NewText(plan.Render(exporterBody,
		plan.Var{Name: "EXPORTER", Value: exporter},
		plan.Var{Name: "TAILSCALE", Value: cli}))
}

// RenderSumProbe returns probe commands that check the SHA-256 of a file, with sha256sum on Linux
// or shasum on macOS.
func RenderSumProbe(path, sum string) string {
	quoted := plan.Quote(path)

	return "sum=$(sha256sum <" + quoted + " || shasum -a 256 <" + quoted + ")\n" +
		"test \"${sum%% *}\" = " + plan.Quote(sum)
}

// Vars returns the variables DEST, MODE and OWNER of a script that writes the file.
func (p FileSpec) Vars() []plan.Var {
	return []plan.Var{
		{Name: "DEST", Value: p.Path},
		{Name: "MODE", Value: fmt.Sprintf("%04o", p.Mode)},
		{Name: "OWNER", Value: p.Owner},
	}
}

// renderProbe returns probe commands that check the mode and the owner. The first stat has the
// options of Linux, the second those of macOS.
func (p FileSpec) renderProbe() string {
	path := plan.Quote(p.Path)

	return "test ! -L " + path + "\n" +
		"test \"$(stat -c '%a %U:%G' " + path + " || stat -f '%Lp %Su:%Sg' " + path + ")\" = " +
		plan.Quote(fmt.Sprintf("%o %s", p.Mode, p.Owner))
}
