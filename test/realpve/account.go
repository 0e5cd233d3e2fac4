// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package realpve

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Grants is one of the guide's two ways to give the operator's account its rights.
type Grants string

// The guide's ways, by how it introduces them.
const (
	ByPool Grants = "With a resource pool"
	ByVMs  Grants = "Without one"
)

// Account is the operator's account on a site.
type Account struct {
	// Pool that its machines go to; empty without one.
	Pool string
	// Credentials of its token.
	Credentials hypervisor.Credentials
}

// What docs/guides/proxmox-permissions.md calls things.
const (
	guidePath     = "docs/guides/proxmox-permissions.md"
	guidePool     = "ci"
	guideUser     = "hyperfleet@pve"
	guideToken    = guideUser + "!operator"
	guideTemplate = "/vms/9000"
	guideStorage  = "local-lvm"
	guideISO      = "hyperfleet-iso"
	guideBridge   = "vmbr0"
)

// commands are a guide's commands below a heading: the lines of its blocks of sh, by how the
// paragraph before them begins.
func commands(guide, heading, paragraph string) []string {
	_, section, _ := strings.Cut(guide, "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")

	var (
		out    []string
		inside = paragraph == ""
		block  bool
	)

	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)

		switch {
		case strings.HasPrefix(line, "```"):
			block = line == "```sh"
		case block && inside:
			out = append(out, line)
		case !block && line != "" && !strings.HasPrefix(line, "<!--") && paragraph != "":
			inside = strings.HasPrefix(line, paragraph)
		}
	}

	return out
}

// onProxmox leaves out what is run elsewhere.
func onProxmox(lines []string) []string {
	var out []string

	for _, line := range lines {
		if strings.HasPrefix(line, "pve") {
			out = append(out, line)
		}
	}

	return out
}

// secretCell is the token's value in the table that pveum prints.
var secretCell = regexp.MustCompile(`value\s*│\s*([0-9a-f-]{36})\b`)

// read gives the guide.
func read() (string, error) {
	root, err := checkout()
	if err != nil {
		return "", err
	}

	raw, err := os.ReadFile(filepath.Join(root, guidePath))
	if err != nil {
		return "", fmt.Errorf("read the guide: %w", err)
	}

	return string(raw), nil
}

// makeAccount makes the operator's account by the guide's commands, as they stand there, but
// for what depends on the kind of grants. What the guide grants on its one template is
// granted on the others as well. An account of a run before is taken away.
func (b *box) makeAccount(ctx context.Context, guide string, templates []int) error {
	roles, user := commands(guide, "Roles", ""), onProxmox(commands(guide, "User and token", ""))
	given := commands(guide, "Grants", "Either way")

	if len(roles) < 7 || len(user) != 2 || len(given) < 5 {
		return fmt.Errorf("read %s: found %d roles, %d commands for the user and %d grants",
			guidePath, len(roles), len(user), len(given))
	}

	for _, line := range given {
		for _, id := range templates {
			if path := fmt.Sprintf("/vms/%d", id); strings.Contains(line, guideTemplate+" ") && path != guideTemplate {
				given = append(given, strings.Replace(line, guideTemplate, path, 1))
			}
		}
	}

	script := slices.Concat([]string{
		"if pveum user list | grep -q " + guideUser + "; then pveum user delete " + guideUser + "; fi",
		"pveum role list | { grep -o 'HyperFleet[A-Za-z]*' || true; } | sort -u | while read -r role; do pveum role delete $role; done",
		"if pveum pool list | grep -qw " + guidePool + "; then pveum pool delete " + guidePool + "; fi",
	}, roles, user, given)

	out, err := b.shell(ctx, strings.Join(script, "\n"))
	if err != nil {
		return err
	}

	secret := secretCell.FindStringSubmatch(out)
	if secret == nil {
		return fmt.Errorf("make the operator's account: no token in what was printed:\n%s", out)
	}

	b.credentials = hypervisor.Credentials{TokenID: guideToken, TokenSecret: secret[1]}

	return nil
}

// account gives the operator's account with the grants, and takes away the other ones.
func (b *box) account(ctx context.Context, grants Grants, templates []int) (Account, error) {
	guide, err := read()
	if err != nil {
		return Account{}, err
	}

	script := commands(guide, "Grants", string(grants))
	if len(script) == 0 {
		return Account{}, fmt.Errorf("read %s: no commands where it says %q", guidePath, grants)
	}

	if b.grants == "" {
		err = b.makeAccount(ctx, guide, templates)
	} else {
		script = append(undo(commands(guide, "Grants", string(b.grants))), script...)
	}

	if err == nil && b.grants != grants {
		_, err = b.shell(ctx, strings.Join(script, "\n"))
		b.grants = grants
	}

	account := Account{Credentials: b.credentials}
	if grants == ByPool {
		account.Pool = guidePool
	}

	return account, err
}

// undo gives the commands that take back what commands of the guide gave.
func undo(given []string) []string {
	var out []string

	for _, line := range given {
		line = strings.Replace(line, "pveum acl modify", "pveum acl delete", 1)
		line = strings.Replace(line, "pvesh create /pools --poolid", "pveum pool delete", 1)
		out = append([]string{line}, out...)
	}

	return out
}

// storages are made as the guide's readers have them, the one for ISOs by the guide's command.
func (b *box) storages(ctx context.Context) error {
	guide, err := read()
	if err != nil {
		return err
	}

	made := onProxmox(commands(guide, "Storage", "**Cloud-init ISOs.**"))
	if len(made) != 1 {
		return fmt.Errorf("read %s: %d commands make a storage for cloud-init ISOs, want one", guidePath, len(made))
	}

	disks, isos := "/var/lib/"+guideStorage, made[0]
	if len(b.nodes()) > 1 { // a folder that the kit shows to all nodes
		disks = "/var/lib/shared/" + guideStorage + " --shared 1"
		isos = strings.Replace(isos, "/var/lib/", "/var/lib/shared/", 1) + " --shared 1"
	}

	_, err = b.shell(ctx, fmt.Sprintf("if pvesm status | grep -q '^%[1]s '; then exit; fi\n"+
		"pvesm remove %[2]s\npvesm add dir %[1]s --path %[5]s --content images\n%[3]s\n"+
		// So that a full clone takes a while.
		"pvesm set %[1]s --bwlimit clone=%[4]d", guideStorage, guideISO, isos, cloneKiBs, disks))

	return err
}

// Account gives the operator's account. Where the environment names the site, its kind of
// grants is as it is, and tests of the other one are skipped.
func (s *Site) Account(t testing.TB, grants Grants) Account {
	t.Helper()

	if s.box == nil && (s.account.Pool != "") != (grants == ByPool) {
		t.Skipf("the account that the environment names has other grants than %q: PVE_POOL says which", grants)
	}

	account, err := s.Operator(t.Context(), grants)
	if err != nil {
		t.Fatal(err)
	}

	return account
}

// Operator gives the operator's account. Where the environment names the site, its grants are
// as they are.
func (s *Site) Operator(ctx context.Context, grants Grants) (Account, error) {
	if s.box == nil {
		return s.account, nil
	}

	return s.box.account(ctx, grants, s.templates())
}
