// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ignition

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/kit/inputbound"
)

type (
	fields = map[string]any
	list   = []any
)

// version of the ignitions that are made: that of the live system's (Ignition 2.15, spec 3.4).
const version = "3.4.0"

// Places in an installed DPU, and in the live system.
const (
	machineConfigPath = "/etc/ignition-machine-config-encapsulated.json"
	targetPath        = "/var/target.ign"
	flavorPath        = "/etc/dpf/dpuflavor.yaml"
	flavorJSONPath    = "/etc/dpf/dpuflavor.json"
	ovsPath           = "/usr/local/bin/dpf-ovs-script.sh"
)

const (
	textMode   = 0o644
	scriptMode = 0o755
)

// Inputs of a template.
type Inputs struct {
	// Worker is the ignition that HyperShift serves.
	Worker []byte
	// Flavor is the DPUFlavor: apiVersion, kind, metadata and spec.
	Flavor map[string]any
	// MachineOS is the image of the DPU's system.
	MachineOS string
	// Target and Live are ignitions of the user's that go over what an installed DPU and the
	// live system have; empty for none.
	Target, Live []byte
}

// Template gives the text that DPF fills for each DPU and hands to its live system.
func Template(in Inputs) (string, error) {
	if err := in.check(); err != nil {
		return "", err
	}

	target, err := read("HyperShift's ignition", in.Worker)
	if err != nil {
		return "", err
	}

	if err := setMachineOS(target, in.MachineOS); err != nil {
		return "", err
	}

	live := fields{"ignition": fields{"version": version}}
	if users, ok := target["passwd"]; ok {
		live["passwd"] = users
	}

	if err := addFlavor(target, live, in.Flavor); err != nil {
		return "", err
	}

	if err := over(target, "target.ign", in.Target); err != nil {
		return "", err
	}

	text, err := write(target)
	if err != nil {
		return "", err
	}

	packed, err := pack([]byte(text))
	if err != nil {
		return "", err
	}

	addInstaller(live, mode(in.Flavor))
	put(live, file(targetPath, textMode, fields{"source": packed, "compression": "gzip"}))

	if err := over(live, "live.ign", in.Live); err != nil {
		return "", err
	}

	return write(live)
}

// What HyperShift's ignition may have, and the machine's configuration in it: a real one has
// some 300 KiB and 2,000 values.
const (
	maxWorker = 1 << 20
	maxValues = 10_000
)

// maxBytes is what each of the inputs may have: what is made of them goes into one ConfigMap of
// 1 MiB.
const maxBytes = 256 << 10

// check refuses inputs that are too large.
func (in *Inputs) check() error {
	if err := inputbound.Text(in.Worker, maxWorker); err != nil {
		return fmt.Errorf("read HyperShift's ignition: %w", err)
	}

	for _, one := range []struct {
		name  string
		bytes int
	}{{"target.ign", len(in.Target)}, {"live.ign", len(in.Live)}, {"DPUFlavor", size(in.Flavor)}} {
		if one.bytes > maxBytes {
			return fmt.Errorf("read %s: %w: it has %d bytes: %d at most", one.name, inputbound.ErrTooLarge, one.bytes, maxBytes)
		}
	}

	return nil
}

// size is about what a value has as JSON.
func size(value any) int {
	const one = len("null,")

	switch v := value.(type) {
	case string:
		return len(v) + one
	case []any:
		out := one
		for _, item := range v {
			out += size(item)
		}

		return out
	case fields:
		out := one
		for key, item := range v {
			out += len(key) + size(item)
		}

		return out
	default:
		return one
	}
}

// write leaves < and > as they are, which DPF's templates may have, and which else take six times
// as much.
func write(config fields) (string, error) {
	var out bytes.Buffer

	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)

	if err := encoder.Encode(config); err != nil {
		return "", fmt.Errorf("write ignition: %w", err)
	}

	return out.String(), nil
}

// read reads an ignition of spec 3.
func read(what string, text []byte) (fields, error) {
	if err := inputbound.JSON(text, maxValues); err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}

	var config fields
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("read %s: it is no JSON", what) // the library's words could quote it
	}

	header, _ := config["ignition"].(fields)
	if said, _ := header["version"].(string); !strings.HasPrefix(said, "3.") {
		return nil, fmt.Errorf("read %s: it is of version %q, and not of 3", what, said)
	}

	return config, nil
}

// setMachineOS has the DPU's first start change to an image that knows the hardware.
func setMachineOS(config fields, image string) error {
	at := find(config, "files", "path", machineConfigPath)
	if at == nil {
		return fmt.Errorf("read HyperShift's ignition: it has no file %s", machineConfigPath)
	}

	contents, _ := at["contents"].(fields)
	source, _ := contents["source"].(string)

	text, err := decode(source)
	if err != nil {
		return fmt.Errorf("read %s: %w", machineConfigPath, err)
	}

	if contents["compression"] == "gzip" {
		if text, err = unpack(text); err != nil {
			return fmt.Errorf("read %s: %w", machineConfigPath, err)
		}
	}

	if err := inputbound.JSON(text, maxValues); err != nil {
		return fmt.Errorf("read %s: %w", machineConfigPath, err)
	}

	var machine fields
	if err := json.Unmarshal(text, &machine); err != nil {
		return fmt.Errorf("read %s: it is no JSON", machineConfigPath)
	}

	spec, ok := machine["spec"].(fields)
	if !ok {
		return fmt.Errorf("read %s: it has no spec", machineConfigPath)
	}

	spec["osImageURL"] = image

	changed, err := write(machine)
	if err == nil {
		err = inputbound.Text([]byte(changed), maxWorker) // what was no UTF-8 has grown
	}

	if err != nil {
		return fmt.Errorf("write %s: %w", machineConfigPath, err)
	}

	at["contents"] = fields{"source": "data:," + url.PathEscape(strings.TrimSuffix(changed, "\n"))}

	return nil
}

// addFlavor brings what a DPUFlavor says: its files and its script for Open vSwitch to the
// installed DPU, and itself to both systems.
func addFlavor(target, live, flavor fields) error {
	spec, _ := flavor["spec"].(fields)

	files, _ := spec["configFiles"].(list)
	for _, item := range files {
		if err := addConfigFile(target, item); err != nil {
			return err
		}
	}

	if ovs, _ := spec["ovs"].(fields); ovs["rawConfigScript"] != nil {
		script, _ := ovs["rawConfigScript"].(string)
		put(target, text(ovsPath, scriptMode, script))
	}

	asYAML, err := yaml.Marshal(flavor)
	if err != nil {
		return fmt.Errorf("write DPUFlavor: %w", err)
	}

	asJSON, err := json.Marshal(flavor)
	if err != nil {
		return fmt.Errorf("write DPUFlavor: %w", err)
	}

	put(target, text(flavorPath, textMode, string(asYAML)))
	put(live, text(flavorJSONPath, textMode, string(asJSON)))

	return nil
}

// addConfigFile brings a file of a DPUFlavor, in place of what is there or at its end.
func addConfigFile(target fields, item any) error {
	config, _ := item.(fields)
	path, _ := config["path"].(string)
	raw, _ := config["raw"].(string)
	permissions, _ := config["permissions"].(string)

	if path == "" {
		return nil
	}

	mode := int64(textMode)

	if permissions != "" {
		var err error
		if mode, err = strconv.ParseInt(permissions, 8, 32); err != nil {
			return fmt.Errorf("read DPUFlavor: file %s: permissions %q are not octal", path, permissions)
		}
	}

	entry := text(path, int(mode), raw)
	if config["operation"] != "append" {
		put(target, entry)

		return nil
	}

	there := find(target, "files", "path", path)
	if there == nil {
		there = fields{"path": path, "mode": mode}
		put(target, there)
	}

	more, _ := there["append"].(list)
	there["append"] = append(more, entry["contents"])

	return nil
}

// mode is how far DPF trusts the host: what the live system tells its programs.
func mode(flavor fields) string {
	spec, _ := flavor["spec"].(fields)
	if spec["dpuMode"] == "zero-trust" {
		return "zero-trust"
	}

	return "trusted"
}

// over puts a user's ignition over one: files by path, units by name, all else added.
func over(config fields, name string, more []byte) error {
	if len(more) == 0 {
		return nil
	}

	theirs, err := read(name, more)
	if err != nil {
		return err
	}

	for _, part := range [][3]string{
		{"storage", "files", "path"}, {"storage", "directories", "path"}, {"storage", "links", "path"},
		{"systemd", "units", "name"}, {"passwd", "users", "name"}, {"passwd", "groups", "name"},
	} {
		section, _ := theirs[part[0]].(fields)
		items, _ := section[part[1]].(list)

		for _, item := range items {
			entry, ok := item.(fields)
			if !ok {
				return fmt.Errorf("read %s: an entry of %s is no object", name, part[1])
			}

			place(config, part[0], part[1], part[2], entry)
		}
	}

	return nil
}

// place puts an entry in place of the one of its name, or adds it.
func place(config fields, section, kind, by string, entry fields) {
	all, _ := config[section].(fields)
	if all == nil {
		all = fields{}
		config[section] = all
	}

	name, _ := entry[by].(string)
	items, _ := all[kind].(list)

	for i, item := range items {
		if there, _ := item.(fields); there[by] == name {
			items[i] = entry

			return
		}
	}

	all[kind] = append(items, entry)
}

func put(config, entry fields) { place(config, "storage", "files", "path", entry) }

// find is an entry of storage; nil if there is none.
func find(config fields, kind, by, name string) fields {
	storage, _ := config["storage"].(fields)
	items, _ := storage[kind].(list)

	for _, item := range items {
		if there, _ := item.(fields); there[by] == name {
			return there
		}
	}

	return nil
}

func file(path string, mode int, contents fields) fields {
	return fields{"path": path, "mode": mode, "overwrite": true, "contents": contents}
}

// text is a file that no template can be in.
func text(path string, mode int, content string) fields {
	return file(path, mode, fields{"source": "data:;base64," + base64.StdEncoding.EncodeToString([]byte(content))})
}

// pack gives a data URL of text that is compressed. It is the same each time.
func pack(text []byte) (string, error) {
	var out bytes.Buffer

	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err == nil {
		_, err = zip.Write(text)
	}

	if err = errors.Join(err, zip.Close()); err != nil {
		return "", fmt.Errorf("pack ignition: %w", err)
	}

	return "data:;base64," + base64.StdEncoding.EncodeToString(out.Bytes()), nil
}
