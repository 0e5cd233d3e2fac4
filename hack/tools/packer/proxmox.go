// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/packer-plugin-sdk/bootcommand"
	"github.com/hashicorp/packer-plugin-sdk/common"
	"github.com/hashicorp/packer-plugin-sdk/communicator"
	"github.com/hashicorp/packer-plugin-sdk/multistep/commonsteps"
	packersdk "github.com/hashicorp/packer-plugin-sdk/packer"
	"github.com/hashicorp/packer-plugin-sdk/template/config"
	"github.com/hashicorp/packer-plugin-sdk/template/interpolate"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// iso is an ISO that is attached to the VM.
type iso struct {
	commonsteps.CDConfig `mapstructure:",squash"`

	Type        string `mapstructure:"type"`
	File        string `mapstructure:"iso_file"`
	StoragePool string `mapstructure:"iso_storage_pool"`
	// Rest has the fields that only ConfigSpec checks.
	Rest map[string]any `mapstructure:",remain"`
}

// settings are the fields that Packer's SDK checks, or that have rules of their own.
type settings struct {
	common.PackerConfig    `mapstructure:",squash"`
	bootcommand.BootConfig `mapstructure:",squash"`
	Comm                   communicator.Config `mapstructure:",squash"`

	TaskTimeout time.Duration `mapstructure:"task_timeout"`
	CloneVM     string        `mapstructure:"clone_vm"`
	CloneVMID   int           `mapstructure:"clone_vm_id"`
	BootISO     *iso          `mapstructure:"boot_iso"`
	ISOs        []iso         `mapstructure:"additional_iso_files"`
	// Rest has the fields that only ConfigSpec checks.
	Rest map[string]any `mapstructure:",remain"`
}

// builder is a builder of the plugin for Proxmox VE 1.2.3, which can check a configuration only.
type builder struct {
	spec   hcldec.ObjectSpec
	clones bool
	// files are the generated files of the ISOs by name.
	files map[string]string
}

var _ packersdk.Builder = (*builder)(nil)

func (b *builder) ConfigSpec() hcldec.ObjectSpec { return b.spec }

// Prepare checks the configuration as the plugin does.
func (b *builder) Prepare(raws ...any) ([]string, []string, error) {
	var s settings

	for i, raw := range raws {
		value, ok := raw.(cty.Value)
		if !ok {
			continue
		}

		text, err := ctyjson.SimpleJSONValue{Value: value}.MarshalJSON()
		if err != nil {
			return nil, nil, err
		}

		decoded := map[string]any{}
		if err := json.Unmarshal(text, &decoded); err != nil {
			return nil, nil, err
		}

		raws[i] = decoded
	}

	ctx := &interpolate.Context{}
	options := &config.DecodeOpts{
		Interpolate: true, InterpolateContext: ctx,
		InterpolateFilter: &interpolate.RenderFilter{Exclude: []string{"boot_command"}},
	}

	if err := config.Decode(&s, options, raws...); err != nil {
		return nil, nil, err
	}

	errs := append(s.BootConfig.Prepare(ctx), s.Comm.Prepare(ctx)...)
	if b.clones && (s.CloneVM == "") == (s.CloneVMID == 0) {
		errs = append(errs, errors.New("set clone_vm or clone_vm_id"))
	}

	for _, one := range append(s.ISOs, b.bootISO(&s)...) {
		errs = append(errs, one.check(ctx)...)
		maps.Copy(b.files, one.CDContent)
	}

	return nil, nil, errors.Join(errs...)
}

func (b *builder) bootISO(s *settings) []iso {
	if s.BootISO == nil {
		return nil
	}

	return []iso{*s.BootISO}
}

// check returns the errors of an ISO, which exists on Proxmox VE or is generated.
func (i *iso) check(ctx *interpolate.Context) []error {
	var errs []error

	if !slices.Contains([]string{"ide", "sata", "scsi"}, i.Type) {
		errs = append(errs, fmt.Errorf("the type of an ISO is %q: it must be ide, sata or scsi", i.Type))
	}

	isGenerated := len(i.CDFiles)+len(i.CDContent) > 0
	switch {
	case isGenerated == (i.File != ""):
		errs = append(errs, errors.New("an ISO needs either iso_file, or cd_files and cd_content"))
	case !isGenerated && !isoPath.MatchString(i.File):
		errs = append(errs, fmt.Errorf("iso_file %q is not STORAGE:iso/NAME", i.File))
	case isGenerated && i.StoragePool == "":
		errs = append(errs, errors.New("a generated ISO needs iso_storage_pool"))
	case isGenerated:
		errs = append(errs, i.CDConfig.Prepare(ctx)...)
	}

	return errs
}

var isoPath = regexp.MustCompile(`^.+:iso/.+$`)

func (b *builder) Run(context.Context, packersdk.Ui, packersdk.Hook) (packersdk.Artifact, error) {
	return nil, errors.New("build: this program only validates")
}

// fields returns the attributes whose names a text lists.
func fields(kind cty.Type, names string) map[string]hcldec.Spec {
	out := map[string]hcldec.Spec{}
	for name := range strings.FieldsSeq(names) {
		out[name] = &hcldec.AttrSpec{Name: name, Type: kind}
	}

	return out
}

// require makes attributes required.
func require(spec map[string]hcldec.Spec, names string) {
	for name := range strings.FieldsSeq(names) {
		attr, _ := spec[name].(*hcldec.AttrSpec)
		attr.Required = true
	}
}

func join(specs ...map[string]hcldec.Spec) map[string]hcldec.Spec {
	out := map[string]hcldec.Spec{}
	for _, spec := range specs {
		maps.Copy(out, spec)
	}

	return out
}

// blocks returns a block that a builder may have several times, and block one that it may have once.
func blocks(name string, spec map[string]hcldec.Spec) map[string]hcldec.Spec {
	return map[string]hcldec.Spec{name: &hcldec.BlockListSpec{TypeName: name, Nested: hcldec.ObjectSpec(spec)}}
}

func block(name string, spec map[string]hcldec.Spec) map[string]hcldec.Spec {
	return map[string]hcldec.Spec{name: &hcldec.BlockSpec{TypeName: name, Nested: hcldec.ObjectSpec(spec)}}
}

// newISOSpec returns the fields of an ISO that is attached to the VM.
func newISOSpec() map[string]hcldec.Spec {
	return join(
		fields(cty.String, "iso_checksum iso_url iso_target_path iso_target_extension type index iso_file iso_storage_pool cd_label"),
		fields(cty.Bool, "iso_download_pve unmount keep_cdrom_device"),
		fields(cty.List(cty.String), "iso_urls cd_files"),
		fields(cty.Map(cty.String), "cd_content"),
	)
}

// newCommonSpec returns the fields that both builders have. Deprecated ones and PCI devices are left out, so that a template
// with one is invalid.
func newCommonSpec() map[string]hcldec.Spec {
	disk := join(
		fields(cty.String, "type storage_pool disk_size cache_mode format asyncio"),
		fields(cty.Bool, "io_thread exclude_from_backup discard ssd"),
	)
	require(disk, "storage_pool")

	card := join(
		fields(cty.String, "model mac_address bridge vlan_tag"), fields(cty.Number, "packet_queues mtu"), fields(cty.Bool, "firewall"),
	)
	require(card, "bridge")

	out := join(
		(&communicator.Config{}).FlatMapstructure().HCL2Spec(),
		fields(cty.String, "http_directory http_bind_address http_interface boot_keygroup_interval boot_wait boot_key_interval "+
			"proxmox_url username password token node pool task_timeout vm_name tags boot cpu_type os bios machine scsi_controller "+
			"template_name template_description cloud_init_storage_pool cloud_init_disk_type vm_interface qemu_additional_args"),
		fields(cty.Number, "http_port_min http_port_max vm_id memory ballooning_minimum cores sockets"),
		fields(cty.Bool, "insecure_skip_tls_verify numa qemu_agent onboot disable_kvm skip_convert_to_template cloud_init"),
		fields(cty.List(cty.String), "boot_command serials"),
		fields(cty.Map(cty.String), "http_content"),
		block("efi_config", join(fields(cty.String, "efi_storage_pool efi_format efi_type"), fields(cty.Bool, "pre_enrolled_keys"))),
		block("tpm_config", fields(cty.String, "tpm_storage_pool tpm_version")),
		block("vga", join(fields(cty.String, "type"), fields(cty.Number, "memory"))),
		blocks("network_adapters", card),
		blocks("disks", disk),
		blocks("additional_iso_files", newISOSpec()),
	)
	require(out, "node")

	return out
}

func newCloneBuilder(files map[string]string) *builder {
	return &builder{clones: true, files: files, spec: join(
		newCommonSpec(),
		fields(cty.String, "clone_vm nameserver searchdomain"),
		fields(cty.Number, "clone_vm_id"),
		fields(cty.Bool, "full_clone"),
		blocks("ipconfig", fields(cty.String, "ip gateway ip6 gateway6")),
	)}
}

func newISOBuilder(files map[string]string) *builder {
	spec := newCommonSpec()
	maps.Copy(spec, block("boot_iso", newISOSpec()))

	boot, _ := spec["boot_iso"].(*hcldec.BlockSpec)
	boot.Required = true

	return &builder{files: files, spec: spec}
}
