// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// MetadataURI is the namespace of this product's elements in the metadata of domains.
const MetadataURI = "https://hyperfleet.io/libvirt/1"

const (
	metadataKey = "hyperfleet"
	// uuidVersion is the version of a UUID whose content is not specified (RFC 9562), and uuidVariant
	// its variant.
	uuidVersion, uuidVariant = 0x80, 0x80
	lowNibble, lowSixBits    = 0x0f, 0x3f
	versionByte, variantByte = 6, 8
	// macPrefix is the first byte of MAC addresses: a unicast address that is administered locally. macIDBits
	// is the number of bits with the ID, at the end.
	macPrefix = 0x52
	macIDBits = 30
	macBits   = 40
)

// Record is the ownership record of a machine, in the metadata of its domain.
type Record struct {
	hypervisor.Record

	// ID of the machine that the record was written for.
	ID int `json:"id"`
}

// metadata is this product's element in the metadata of a domain.
type metadata struct {
	// Started is true if the guest may have run.
	Started bool   `xml:"started,attr"`
	Record  string `xml:",chardata"`
}

// encodeMetadata returns the element with the record.
func encodeMetadata(r Record, isStarted bool) (string, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode ownership record of machine %d: %w", r.ID, err)
	}

	var text bytes.Buffer
	if err := xml.EscapeText(&text, raw); err != nil {
		return "", fmt.Errorf("encode ownership record of machine %d: %w", r.ID, err)
	}

	return fmt.Sprintf(`<%[1]s:machine xmlns:%[1]s=%[2]q started="%[3]t">%[4]s</%[1]s:machine>`,
		metadataKey, MetadataURI, isStarted, text.String()), nil
}

// ParseMetadata returns the record in an element of metadata, and whether the machine was started. If the
// element holds no record, the error is hypervisor.ErrNoRecord.
func ParseMetadata(element string) (record Record, isStarted bool, err error) {
	var parsed metadata
	if err := xml.Unmarshal([]byte(element), &parsed); err != nil {
		return Record{}, false, fmt.Errorf("%w: %w", hypervisor.ErrNoRecord, err)
	}

	if err := hypervisor.DecodeRecord(parsed.Record, &record); err != nil {
		return Record{}, false, err
	}

	return record, parsed.Started, nil
}

// identity identifies this operator on one cluster.
type identity struct{ hypervisor.Identity }

func (i identity) newRecord(spec hypervisor.MachineSpec, now time.Time) Record {
	return Record{Record: i.NewRecord(spec.Owner, spec.Network, now), ID: spec.ID}
}

// newVolumeRecord returns what the name of a volume says of its machine.
func (i identity) newVolumeRecord(id int, claimUID string) Record {
	return Record{Record: i.NewRecord(hypervisor.Owner{UID: claimUID}, hypervisor.NetworkOptions{}, time.Time{}), ID: id}
}

// owns reports whether a domain is this operator's. A copy of a domain has the record of the original, but
// another UUID.
func (i identity) owns(r Record, uuid golibvirt.UUID) bool {
	return i.HasWritten(r.Record) && i.machineUUID(r.ID, r.MachineClaim.UID) == uuid
}

// uuidPrefix returns the first bytes of the UUIDs of this operator's machines.
func (i identity) uuidPrefix() []byte {
	prefix, _ := hex.DecodeString(i.Hash()) // Hash returns hexadecimal digits

	return prefix
}

func (i identity) machineUUID(id int, claimUID string) golibvirt.UUID {
	return newMachineUUID(i.Hash(), id, claimUID)
}

// newMachineUUID returns the UUID of a machine of the operator with the hash.
func newMachineUUID(hash string, id int, claimUID string) golibvirt.UUID {
	var uuid golibvirt.UUID

	prefix, _ := hex.DecodeString(hash) // hexadecimal digits
	sum := sha256.Sum256([]byte(strconv.Itoa(id) + "\x00" + claimUID))
	n := copy(uuid[:], prefix)
	copy(uuid[n:], sum[:])

	uuid[versionByte] = uuid[versionByte]&lowNibble | uuidVersion
	uuid[variantByte] = uuid[variantByte]&lowSixBits | uuidVariant

	return uuid
}

// machineMAC returns the MAC address of a machine. It holds the ID, so it is unique in the cluster, and a
// part of the operator's hash, so two operators in one network rarely choose the same address.
func (i identity) machineMAC(id int) string {
	prefix := i.uuidPrefix()
	hash := (uint64(prefix[0])<<8 | uint64(prefix[1])) >> (16 - (macBits - macIDBits))
	bits := hash<<macIDBits | uint64(id) //nolint:gosec // an ID is positive and has at most macIDBits

	mac := net.HardwareAddr{macPrefix, 0, 0, 0, 0, 0}
	for b := len(mac) - 1; b > 0; b-- {
		mac[b] = byte(bits)
		bits >>= 8
	}

	return mac.String()
}

// Kinds of a machine's volumes, at the end of their names. transientSuffix is that of the disk of a transient machine. Before
// it is the tag of the host, because hosts can share a file system.
const (
	diskSuffix      = ".disk"
	transientSuffix = ".run"
	isoSuffix       = ".iso"
)

func (i identity) volumePrefix() string { return "hf-" + i.Hash() + "-" }

func (i identity) volumeName(id int, claimUID, suffix string) string {
	return i.volumePrefix() + strconv.Itoa(id) + "-" + claimUID + suffix
}

// transientVolumeSuffix returns the end of the names of the disks of transient machines on a host.
func transientVolumeSuffix(host string) string {
	const tagBytes = 3
	sum := sha256.Sum256([]byte(host))

	return "." + hex.EncodeToString(sum[:tagBytes]) + transientSuffix
}

// parseVolume returns the ID and the claim's UID in the name of a volume, and false if the volume is not this
// operator's.
func (i identity) parseVolume(name string) (id int, claimUID string, ok bool) {
	rest, ok := strings.CutPrefix(name, i.volumePrefix())
	if !ok {
		return 0, "", false
	}

	extension := path.Ext(rest)
	if !slices.Contains([]string{diskSuffix, transientSuffix, isoSuffix}, extension) {
		return 0, "", false
	}

	rest = strings.TrimSuffix(rest, extension)
	if extension == transientSuffix {
		rest = strings.TrimSuffix(rest, path.Ext(rest))
	}

	number, claimUID, ok := strings.Cut(rest, "-")
	id, err := strconv.Atoi(number)

	return id, claimUID, ok && err == nil && claimUID != ""
}

// parseID returns the ID at the end of a domain's name, or 0.
func parseID(name string) int {
	id, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
	if err != nil {
		return 0
	}

	return id
}
