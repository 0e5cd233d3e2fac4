// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package realpve

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Image is a machine image of hack/vm-image: its disk, and how its kernel is booted.
type Image struct{ Disk, Kernel, Initrd, Append string }

// runnerMemory is what machines of an image need to boot, in MiB.
const runnerMemory = 768

// RunnerTemplate makes an image the site's template, under the id that the guide grants rights
// on. A site that the environment names has its own.
func (s *Site) RunnerTemplate(ctx context.Context, image Image) error {
	if s.box == nil {
		return nil
	}

	s.Template = templateID

	_, err := s.box.kit(ctx, "template", "--id", strconv.Itoa(s.Template), "--name", "hyperfleet-runner",
		"--storage", guideStorage, "--memory", strconv.Itoa(runnerMemory), "--disk", image.Disk,
		"--kernel", image.Kernel, "--initrd", image.Initrd, "--append", image.Append)

	return err
}

// Reach is how an operator reaches the site with an account: the ids are those that nobody
// else uses.
func (s *Site) Reach(account Account) hypervisor.Config {
	return hypervisor.Config{
		Endpoint: s.endpoint, TLS: s.tls.Clone(), Credentials: account.Credentials,
		DefaultStorage: s.storage, ISOStorage: s.iso, DefaultNetwork: s.bridge, ResourcePool: account.Pool,
		IDMin: s.first, IDMax: s.first + idsOfTests - 1,
	}
}

// Machine is one as the administrator sees it.
type Machine struct {
	Node string
	// Config is its configuration in one line.
	Config string
}

// Machines gives all there are by id, templates too, and the cloud-init ISOs of operators.
func (s *Site) Machines(ctx context.Context) (map[int]Machine, []string, error) {
	rows, err := s.rows(ctx)
	if err != nil {
		return nil, nil, err
	}

	out := map[int]Machine{}

	for _, r := range rows {
		config, err := s.config(ctx, r)
		if err != nil {
			return nil, nil, err
		}

		if config != nil {
			out[r.VMID] = Machine{Node: r.Node, Config: text(config)}
		}
	}

	isos, err := s.isos(ctx)

	names := make([]string, 0, len(isos))
	for _, iso := range isos {
		names = append(names, iso.Node+" "+iso.VolID)
	}

	return out, names, err
}

// Console is what a machine wrote to its serial console; the kit keeps it, also of machines
// that are gone.
func (s *Site) Console(id int) string {
	if s.box == nil {
		return ""
	}

	files, _ := filepath.Glob(filepath.Join(s.box.dir, "nodes", "*", "log", fmt.Sprintf("serial-%d.log", id)))

	var out strings.Builder

	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err == nil {
			out.Write(raw)
		}
	}

	return out.String()
}
