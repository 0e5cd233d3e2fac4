// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package realpve

import (
	"context"
	"fmt"
	"strings"
)

const (
	// cloneKiBs is how many KiB a second clones may copy, and slowMiB what the slow template
	// has: ten seconds.
	cloneKiBs = 20 << 10
	slowMiB   = 200
	// templateID is the guide's; the others follow.
	templateID = 9000
)

// templateScript makes a template: its id, name, further options, what is done before it
// becomes one, and after.
const templateScript = `
if qm config %[1]d >/dev/null 2>&1; then exit; fi
qm create %[1]d --name %[2]s --memory 64 --cores 1 --kvm 0 --agent 1 --ostype l26 --scsihw virtio-scsi-pci \
	--net0 virtio,bridge=` + guideBridge + ` --boot order=scsi0 --scsi0 ` + guideStorage + `:1,format=qcow2 %[3]s
%[4]s
qm template %[1]d
%[5]s
`

// makeTemplates makes the three, or the small one alone on several nodes, and waits until
// Proxmox VE tells of them.
func (s *Site) makeTemplates(ctx context.Context) error {
	s.Template = templateID
	scripts := []string{fmt.Sprintf(templateScript, s.Template, "hyperfleet-runner", "", "", "")}

	if len(s.box.nodes()) == 1 {
		scripts = append(scripts, s.furtherTemplates()...)
	}

	for _, script := range scripts {
		if _, err := s.box.shell(ctx, script); err != nil {
			return err
		}
	}

	return s.awaitTemplates(ctx)
}

// furtherTemplates are the commands that make the slow one and the one with a TPM.
func (s *Site) furtherTemplates() []string {
	s.SlowTemplate, s.TPMTemplate = templateID+1, templateID+2

	fill := fmt.Sprintf("qemu-io -f qcow2 -c 'write -P 170 0 %dM' $(pvesm path %s:%d/vm-%[3]d-disk-0.qcow2)",
		slowMiB, guideStorage, s.SlowTemplate)
	// A TPM is made at the first start.
	start := fmt.Sprintf("qm start %d\nqm stop %[1]d", s.TPMTemplate)
	protect := fmt.Sprintf("qm set %d --protection 1", s.TPMTemplate)

	return []string{
		fmt.Sprintf(templateScript, s.SlowTemplate, "with-data", "", fill, ""),
		fmt.Sprintf(templateScript, s.TPMTemplate, "with-tpm", "--tpmstate0 "+guideStorage+":1,version=v2.0", start, protect),
	}
}

func (s *Site) awaitTemplates(ctx context.Context) error {
	return waitFor(ctx, "Proxmox VE to tell of the templates", func() (bool, error) {
		var rows []struct {
			VMID     int `json:"vmid"`
			Template int `json:"template"`
		}

		err := s.get(ctx, "/cluster/resources?type=vm", &rows)
		known := 0

		for _, row := range rows {
			known += row.Template
		}

		return known >= len(s.templates()), err
	})
}

// tpm stands for what is in a TPM's volume: its digest.
func (s *Site) tpm(ctx context.Context, option string) (string, error) {
	volume, _, _ := strings.Cut(option, ",")
	if volume == "" || s.box == nil {
		return volume, nil
	}

	return s.box.shell(ctx, "sha256sum < $(pvesm path "+volume+")")
}
