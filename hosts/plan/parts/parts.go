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

// Place is where a part lies at a host.
type Place struct {
	// Path is absolute.
	Path string
	Mode fs.FileMode
	// Owner is "user:group".
	Owner string
}

// File is a part that is kept at a place: a file, unit or binary.
func File(label string, kind plan.Kind, place Place, content plan.Content) plan.Part {
	return plan.Part{
		Label: label, Kind: kind, When: plan.Always,
		Path: place.Path, Mode: place.Mode, Owner: place.Owner,
		Content: content,
		Apply: plan.Render(installBody, append(place.Vars(),
			plan.Var{Name: "SHA256", Value: content.SHA256()})...),
		Probe: SumProbe(place.Path, content.SHA256()) + "\n" + place.probe(),
	}
}

// Secret is a file whose content belongs to one host and is in no digest, and so it is
// probed for being there alone.
func Secret(label string, place Place, secret log.Secret) plan.Part {
	return plan.Part{
		Label: label, Kind: plan.File, When: plan.Always,
		Path: place.Path, Mode: place.Mode, Owner: place.Owner,
		Secret: secret,
		Apply:  plan.Render(secretBody, append(place.Vars(), plan.Var{Name: "END", Value: plan.End})...),
		Probe:  "test -s " + plan.Quote(place.Path) + "\n" + place.probe(),
	}
}

// Script is a part that is a script.
func Script(label, body, probe string, vars ...plan.Var) plan.Part {
	return plan.Part{
		Label: label, Kind: plan.Script, When: plan.Always,
		Apply: plan.Render(body, vars...),
		Probe: probe,
	}
}

// OnFirstBoot gives the part as one that is never applied again. Nothing looks whether
// it is there, as nothing would bring it back.
func OnFirstBoot(part plan.Part) plan.Part {
	part.When, part.Probe = plan.FirstBoot, ""

	return part
}

// Tailnet is how a host is in its tailnet.
type Tailnet struct {
	// CLI is the path of tailscale.
	CLI string
	// Hostname that the host has in the tailnet; its own.
	Hostname     string
	Tags         []string
	AcceptRoutes bool
	AuthKey      log.Secret
}

// Tailscale joins a host to its tailnet, or tells it what is new there.
func Tailscale(t Tailnet) plan.Part {
	part := Script("tailscale", tailscaleBody,
		plan.Quote(t.CLI)+" ip -4 | grep '^100\\.'",
		plan.Var{Name: "TAILSCALE", Value: t.CLI},
		plan.Var{Name: "TAGS", Value: strings.Join(t.Tags, ",")},
		plan.Var{Name: "ACCEPT_ROUTES", Value: strconv.FormatBool(t.AcceptRoutes)},
		plan.Var{Name: "TAILNET_NAME", Value: t.Hostname},
		plan.Var{Name: "END", Value: plan.End})
	part.Secret = t.AuthKey

	return part
}

// ExporterRun is the text of a program that starts node_exporter where the tailnet alone
// reaches it; without a tailnet (no cli) where the host alone does.
func ExporterRun(exporter, cli string) plan.Content {
	return plan.Text(plan.Render(exporterBody,
		plan.Var{Name: "EXPORTER", Value: exporter},
		plan.Var{Name: "TAILSCALE", Value: cli}))
}

// SumProbe looks for the SHA-256 of a file. Linux has sha256sum, macOS shasum.
func SumProbe(path, sum string) string {
	quoted := plan.Quote(path)

	return "sum=$(sha256sum <" + quoted + " || shasum -a 256 <" + quoted + ")\n" +
		"test \"${sum%% *}\" = " + plan.Quote(sum)
}

// Vars are the variables of a script that puts something there: DEST, MODE and OWNER.
func (p Place) Vars() []plan.Var {
	return []plan.Var{
		{Name: "DEST", Value: p.Path},
		{Name: "MODE", Value: fmt.Sprintf("%04o", p.Mode)},
		{Name: "OWNER", Value: p.Owner},
	}
}

// probe looks at mode and owner. The first stat is that of Linux, the other that of macOS.
func (p Place) probe() string {
	path := plan.Quote(p.Path)

	return "test ! -L " + path + "\n" +
		"test \"$(stat -c '%a %U:%G' " + path + " || stat -f '%Lp %Su:%Sg' " + path + ")\" = " +
		plan.Quote(fmt.Sprintf("%o %s", p.Mode, p.Owner))
}
