// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	golibvirt "github.com/digitalocean/go-libvirt"
)

// Image is what machines boot from. If Kernel is set, they boot Kernel and Initrd with the arguments in Append
// instead of the boot loader on Disk.
type Image struct{ Disk, Kernel, Initrd, Append string }

// Publish copies the files of an image to the host, where libvirtd and QEMU can read them. Other hosts on this
// computer can use the copy.
func (h *Host) Publish(image Image) (Image, error) {
	out := image

	for _, file := range []*string{&out.Disk, &out.Kernel, &out.Initrd} {
		if *file == "" {
			continue
		}

		copied := h.path(filepath.Join("images", filepath.Base(*file)))
		if err := copyFile(*file, copied); err != nil {
			return Image{}, fmt.Errorf("copy the image of machines: %w", err)
		}

		*file = copied
	}

	return out, nil
}

func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), accessToFolders); err != nil {
		return err
	}

	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // it was only read

	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, readableByAll)
	if err != nil {
		return err
	}

	_, err = io.Copy(target, source)

	return errors.Join(err, target.Close())
}

// ConsoleLog returns the file with the serial consoles of all machines that have the devices of the template.
func (h *Host) ConsoleLog() string { return h.path("console.log") }

// CreateTemplate defines the domain TemplateName: a volume on top of a published image, a serial console and
// a channel for the guest agent.
func (h *Host) CreateTemplate(image Image) error {
	name := TemplateName
	disk := name + ".qcow2"
	volume := fmt.Sprintf("<volume><name>%s</name><capacity>%d</capacity><target><format type='qcow2'/></target>"+
		"<backingStore><path>%s</path><format type='qcow2'/></backingStore></volume>", disk, templateDisk, image.Disk)

	definition := fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='MiB'>512</memory>
<os><type arch='x86_64' machine='q35'>hvm</type>%s%s%s</os><features><acpi/></features><cpu mode='maximum'/><devices>
<controller type='scsi' index='0' model='virtio-scsi'/>
<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='%s'/><target dev='sda' bus='scsi'/></disk>
<serial type='pty'><log file='%s' append='on'/></serial>
<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng></devices></domain>`,
		name, element("kernel", image.Kernel), element("initrd", image.Initrd), element("cmdline", image.Append),
		filepath.Join(h.path("pool"), disk), h.ConsoleLog())

	return h.Use(func(rpc *golibvirt.Libvirt) error {
		pool, err := rpc.StoragePoolLookupByName(PoolName)
		if err == nil {
			_, err = rpc.StorageVolCreateXML(pool, volume, 0)
		}

		if err == nil {
			_, err = rpc.DomainDefineXMLFlags(definition, golibvirt.DomainDefineValidate)
		}

		if err != nil {
			return fmt.Errorf("create template %s: %w", name, err)
		}

		return nil
	})
}

// element returns an XML element, and nothing for an empty text.
func element(name, text string) string {
	if text == "" {
		return ""
	}

	var escaped bytes.Buffer

	_ = xml.EscapeText(&escaped, []byte(text)) // a buffer returns no error

	return "<" + name + ">" + escaped.String() + "</" + name + ">"
}
