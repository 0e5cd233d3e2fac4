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

	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

type (
	fields = map[string]any
	list   = []any
)

// ignitionVersion is the spec version of the ignitions that this package builds. It is the version that
// the live system supports (Ignition 2.15, spec 3.4).
const ignitionVersion = "3.4.0"

// Paths in an installed DPU and in the live system.
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

// Inputs are the inputs of a template.
type Inputs struct {
	// Worker is the ignition that HyperShift serves.
	Worker []byte
	// Flavor is the DPUFlavor with apiVersion, kind, metadata and spec.
	Flavor map[string]any
	// MachineOS is the image of the DPU's operating system.
	MachineOS string
	// Target and Live are the user's ignitions, which are merged into the ignitions of an installed DPU
	// and of the live system. They may be empty.
	Target, Live []byte
}

// BuildTemplate returns the ignition template that DPF renders for each DPU and passes to its live
// system.
func BuildTemplate(in Inputs) (string, error) {
	if err := in.validate(); err != nil {
		return "", err
	}

	target, err := parseConfig("HyperShift's ignition", in.Worker)
	if err != nil {
		return "", err
	}

	if err := setMachineOS(target, in.MachineOS); err != nil {
		return "", err
	}

	live := fields{"ignition": fields{"version": ignitionVersion}}
	if users, ok := target["passwd"]; ok {
		live["passwd"] = users
	}

	if err := addFlavor(target, live, in.Flavor); err != nil {
		return "", err
	}

	if err := mergeUserConfig(target, "target.ign", in.Target); err != nil {
		return "", err
	}

	text, err := encode(target)
	if err != nil {
		return "", err
	}

	packed, err := compress([]byte(text))
	if err != nil {
		return "", err
	}

	addInstaller(live, dpuMode(in.Flavor))
	setFile(live, newFile(targetPath, textMode, fields{"source": packed, "compression": "gzip"}))

	if err := mergeUserConfig(live, "live.ign", in.Live); err != nil {
		return "", err
	}

	return encode(live)
}

// Limits of HyperShift's ignition and of the machine configuration in it. A real one has about 300 KiB
// and 2,000 values.
const (
	maxWorkerBytes = 1 << 20
	maxJSONValues  = 10_000
)

// maxInputBytes bounds each of the other inputs, because everything is stored in one ConfigMap of at
// most 1 MiB.
const maxInputBytes = 256 << 10

// validate returns an error if an input is too large.
func (in *Inputs) validate() error {
	if err := bounds.CheckSize(in.Worker, maxWorkerBytes); err != nil {
		return fmt.Errorf("read HyperShift's ignition: %w", err)
	}

	for _, input := range []struct {
		name string
		size int
	}{{"target.ign", len(in.Target)}, {"live.ign", len(in.Live)}, {"DPUFlavor", estimateSize(in.Flavor)}} {
		if input.size > maxInputBytes {
			return fmt.Errorf("read %s: %w: it has %d bytes, and at most %d are allowed",
				input.name, bounds.ErrTooLarge, input.size, maxInputBytes)
		}
	}

	return nil
}

// estimateSize returns approximately how many bytes a value has as JSON.
func estimateSize(value any) int {
	const overhead = len("null,")

	switch v := value.(type) {
	case string:
		return len(v) + overhead
	case []any:
		out := overhead
		for _, item := range v {
			out += estimateSize(item)
		}

		return out
	case fields:
		out := overhead
		for key, item := range v {
			out += len(key) + estimateSize(item)
		}

		return out
	default:
		return overhead
	}
}

// encode returns the ignition as JSON. It does not escape < and >, because DPF's templates may contain
// them and escaping takes six times as many bytes.
func encode(config fields) (string, error) {
	var out bytes.Buffer

	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)

	if err := encoder.Encode(config); err != nil {
		return "", fmt.Errorf("encode ignition: %w", err)
	}

	return out.String(), nil
}

// parseConfig parses an ignition of spec 3. name is the name of the input for errors.
func parseConfig(name string, text []byte) (fields, error) {
	if err := bounds.CheckJSON(text, maxJSONValues); err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}

	var config fields
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("parse %s: it is not JSON", name) // the error of package json may contain the input
	}

	header, _ := config["ignition"].(fields)
	if spec, _ := header["version"].(string); !strings.HasPrefix(spec, "3.") {
		return nil, fmt.Errorf("parse %s: it has version %q and must have version 3.x", name, spec)
	}

	return config, nil
}

// setMachineOS changes the machine configuration so that the DPU's first boot switches to an image that
// supports its hardware.
func setMachineOS(config fields, image string) error {
	entry := findEntry(config, "files", "path", machineConfigPath)
	if entry == nil {
		return fmt.Errorf("parse HyperShift's ignition: it has no file %s", machineConfigPath)
	}

	contents, _ := entry["contents"].(fields)
	source, _ := contents["source"].(string)

	text, err := decodeDataURL(source)
	if err != nil {
		return fmt.Errorf("parse %s: %w", machineConfigPath, err)
	}

	if contents["compression"] == "gzip" {
		if text, err = decompress(text); err != nil {
			return fmt.Errorf("parse %s: %w", machineConfigPath, err)
		}
	}

	if err := bounds.CheckJSON(text, maxJSONValues); err != nil {
		return fmt.Errorf("parse %s: %w", machineConfigPath, err)
	}

	var machine fields
	if err := json.Unmarshal(text, &machine); err != nil {
		return fmt.Errorf("parse %s: it is not JSON", machineConfigPath)
	}

	spec, ok := machine["spec"].(fields)
	if !ok {
		return fmt.Errorf("parse %s: it has no spec", machineConfigPath)
	}

	spec["osImageURL"] = image

	changed, err := encode(machine)
	if err == nil {
		err = bounds.CheckSize([]byte(changed), maxWorkerBytes) // replacing invalid UTF-8 may have made the text longer
	}

	if err != nil {
		return fmt.Errorf("encode %s: %w", machineConfigPath, err)
	}

	entry["contents"] = fields{"source": "data:," + url.PathEscape(strings.TrimSuffix(changed, "\n"))}

	return nil
}

// addFlavor adds the files and the Open vSwitch script of a DPUFlavor to the installed DPU, and the
// DPUFlavor itself to both systems.
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
		setFile(target, newTextFile(ovsPath, scriptMode, script))
	}

	asYAML, err := yaml.Marshal(flavor)
	if err != nil {
		return fmt.Errorf("encode DPUFlavor: %w", err)
	}

	asJSON, err := json.Marshal(flavor)
	if err != nil {
		return fmt.Errorf("encode DPUFlavor: %w", err)
	}

	setFile(target, newTextFile(flavorPath, textMode, string(asYAML)))
	setFile(live, newTextFile(flavorJSONPath, textMode, string(asJSON)))

	return nil
}

// addConfigFile adds a file of a DPUFlavor. The file replaces an existing file, or is appended to it if
// its operation is append. A file without a path is ignored.
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
			return fmt.Errorf("parse DPUFlavor: file %s: permissions %q are not octal", path, permissions)
		}
	}

	entry := newTextFile(path, int(mode), raw)
	if config["operation"] != "append" {
		setFile(target, entry)

		return nil
	}

	existing := findEntry(target, "files", "path", path)
	if existing == nil {
		existing = fields{"path": path, "mode": mode}
		setFile(target, existing)
	}

	parts, _ := existing["append"].(list)
	existing["append"] = append(parts, entry["contents"])

	return nil
}

// dpuMode returns how much DPF trusts the host: zero-trust or trusted. The programs of the live system
// read it.
func dpuMode(flavor fields) string {
	spec, _ := flavor["spec"].(fields)
	if spec["dpuMode"] == "zero-trust" {
		return "zero-trust"
	}

	return "trusted"
}

// mergeUserConfig merges a user's ignition into config. Files, directories and links replace entries
// with the same path, and units, users and groups replace entries with the same name. Other entries are
// added.
func mergeUserConfig(config fields, name string, text []byte) error {
	if len(text) == 0 {
		return nil
	}

	userConfig, err := parseConfig(name, text)
	if err != nil {
		return err
	}

	for _, part := range [][3]string{
		{"storage", "files", "path"}, {"storage", "directories", "path"}, {"storage", "links", "path"},
		{"systemd", "units", "name"}, {"passwd", "users", "name"}, {"passwd", "groups", "name"},
	} {
		section, _ := userConfig[part[0]].(fields)
		items, _ := section[part[1]].(list)

		for _, item := range items {
			entry, ok := item.(fields)
			if !ok {
				return fmt.Errorf("parse %s: an entry of %s is not an object", name, part[1])
			}

			setEntry(config, part[0], part[1], part[2], entry)
		}
	}

	return nil
}

// setEntry adds an entry to a list of the configuration, or replaces the entry that has the same value of
// keyField. For example, a file is in the section storage and has the kind files and the keyField path.
func setEntry(config fields, section, kind, keyField string, entry fields) {
	entriesByKind, _ := config[section].(fields)
	if entriesByKind == nil {
		entriesByKind = fields{}
		config[section] = entriesByKind
	}

	name, _ := entry[keyField].(string)
	items, _ := entriesByKind[kind].(list)

	for i, item := range items {
		if existing, _ := item.(fields); existing[keyField] == name {
			items[i] = entry

			return
		}
	}

	entriesByKind[kind] = append(items, entry)
}

func setFile(config, entry fields) { setEntry(config, "storage", "files", "path", entry) }

// findEntry returns an entry of the storage section, and nil if there is none.
func findEntry(config fields, kind, keyField, name string) fields {
	storage, _ := config["storage"].(fields)
	items, _ := storage[kind].(list)

	for _, item := range items {
		if existing, _ := item.(fields); existing[keyField] == name {
			return existing
		}
	}

	return nil
}

func newFile(path string, mode int, contents fields) fields {
	return fields{"path": path, "mode": mode, "overwrite": true, "contents": contents}
}

// newTextFile returns a file with base64 content. DPF does not render templates in it.
func newTextFile(path string, mode int, content string) fields {
	return newFile(path, mode, fields{"source": "data:;base64," + base64.StdEncoding.EncodeToString([]byte(content))})
}

// compress returns a data URL with the gzip-compressed text. The same text always gives the same URL.
func compress(text []byte) (string, error) {
	var out bytes.Buffer

	writer, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err == nil {
		_, err = writer.Write(text)
	}

	if err = errors.Join(err, writer.Close()); err != nil {
		return "", fmt.Errorf("compress ignition: %w", err)
	}

	return "data:;base64," + base64.StdEncoding.EncodeToString(out.Bytes()), nil
}
