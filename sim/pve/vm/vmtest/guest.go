// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmtest

import "encoding/binary"

// The guest is a boot sector in 16-bit real mode (IBM PC BIOS, with the disk
// calls of Enhanced Disk Drive: INT 13h, functions 42h, 43h and 48h). It prints
//
//	BOOT           the guest runs
//	disk=00000800  the number of sectors of its disk
//	runs=00000001  how often this disk was booted; sector 1 holds the counter
//	cd=cidata      the label of the ISO in its first CD drive
//	BUTTON         the power button was pressed
//
// and powers off through the ACPI register PM1a_CNT. SeaBIOS maps this register
// to 604h on both of QEMU's chipsets (PM1 status 600h, enable 602h; the power
// button is bit 8, ACPI 6.5 section 4.8.3.1).

// Behavior is what a guest does after its report.
type Behavior int

// The behaviors of guests.
const (
	// PowersOff powers off at once.
	PowersOff Behavior = iota
	// AwaitsButton waits for the power button and then powers off.
	AwaitsButton
	// Hangs runs forever and ignores the power button.
	Hangs
	// Reboots reboots at once.
	Reboots
)

const (
	origin   = 0x7c00
	sector   = 512
	counter  = 0x8000 // sector 1 of the disk
	volume   = 0x9000 // sector 16 of the CD
	geometry = 0xa000 // the BIOS's parameters of the disk
	disk     = 0x80
	cd       = 0xe0 // SeaBIOS: the first CD drive
)

// BootSector returns the boot sector of a guest.
func BootSector(behavior Behavior) []byte {
	p := newProgram()
	p.emit(0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, 0xbc).word(origin).emit(0xfb) // cli; segments and stack; sti
	p.print("boot")
	p.diskSize()
	p.countRuns()
	p.readLabel()
	switch behavior {
	case PowersOff:
		p.jump(0xe9, "off")
	case AwaitsButton:
		p.awaitButton()
	case Reboots:
		p.emit(0xba).word(0x64).emit(0xb0, 0xfe, 0xee) // mov dx,64h; mov al,feh; out dx,al: reset by the keyboard controller
		p.emit(0xfa, 0xf4)
	case Hangs:
		p.emit(0xfa, 0xf4) // cli; hlt
	}
	p.powerOff()
	p.subroutines()
	p.data()
	return p.link()
}

// program is a small assembler.
type program struct {
	code   []byte
	labels map[string]int
	fixups []fixup
}

type fixup struct {
	offset   int
	label    string
	relative bool
}

func newProgram() *program { return &program{labels: map[string]int{}} }

func (p *program) emit(b ...byte) *program { p.code = append(p.code, b...); return p }

func (p *program) word(v uint16) *program {
	p.code = binary.LittleEndian.AppendUint16(p.code, v)
	return p
}

func (p *program) label(name string) *program { p.labels[name] = len(p.code); return p }

// jump emits a jump, a call or (with prefix 0fh) a conditional jump.
func (p *program) jump(op byte, label string) *program {
	if op != 0xe8 && op != 0xe9 {
		p.emit(0x0f)
	}
	p.emit(op)
	p.fixups = append(p.fixups, fixup{len(p.code), label, true})
	return p.word(0)
}

// address emits the address of a label.
func (p *program) address(label string) *program {
	p.fixups = append(p.fixups, fixup{offset: len(p.code), label: label})
	return p.word(0)
}

// link inserts the addresses and adds the signature of a boot sector.
func (p *program) link() []byte {
	for _, f := range p.fixups {
		v := p.labels[f.label] + origin
		if f.relative {
			v = p.labels[f.label] - f.offset - 2
		}
		binary.LittleEndian.PutUint16(p.code[f.offset:], uint16(v)) // #nosec G115 -- intentional overflow
	}
	out := make([]byte, sector)
	if copy(out, p.code) > sector-2 {
		panic("vmtest: the guest does not fit its sector")
	}
	out[sector-2], out[sector-1] = 0x55, 0xaa
	return out
}

// print emits code that prints a text: mov si,text; call print.
func (p *program) print(text string) *program {
	return p.emit(0xbe).address(text).jump(0xe8, "print")
}

// bios emits a call of INT 13h for a drive. DS:SI points to the packet.
func (p *program) bios(function, drive byte) {
	p.emit(0xb4, function, 0xb2, drive, 0xcd, 0x13)
}

func (p *program) diskSize() {
	p.emit(0xc7, 0x06).word(geometry).word(0x1e) // mov word [geometry],size
	p.emit(0xbe).word(geometry).bios(0x48, disk)
	p.print("disk").emit(0x66, 0xa1).word(geometry+16).jump(0xe8, "hex") // mov eax,[sectors]
}

func (p *program) countRuns() {
	p.emit(0xbe).address("sector1").bios(0x42, disk)
	p.emit(0xff, 0x06).word(counter) // inc word [counter]
	p.emit(0xb0, 0x00, 0xbe).address("sector1").bios(0x43, disk)
	p.print("runs").emit(0x66, 0xa1).word(counter).jump(0xe8, "hex")
}

func (p *program) readLabel() {
	p.emit(0xbe).address("sector16").bios(0x42, cd)
	p.jump(0x82, "nocd") // jc
	p.print("cd").emit(0xc6, 0x06).word(volume+46).emit(0x00, 0xbe).word(volume+40).jump(0xe8, "print").print("line")
	p.label("nocd")
}

func (p *program) awaitButton() {
	p.emit(0xba).word(0x602).emit(0xed, 0x80, 0xcc, 0x01, 0xef) // mov dx,602h; in ax,dx; or ah,1; out dx,ax
	p.print("ready")
	p.label("wait").emit(0xfb, 0xf4)                                         // sti; hlt: waits for the next tick
	p.emit(0xba).word(0x600).emit(0xed, 0xf6, 0xc4, 0x01).jump(0x84, "wait") // in ax,dx; test ah,1; jz
	p.print("button")
}

func (p *program) powerOff() {
	p.label("off").emit(0xba).word(0x604).emit(0xb8).word(0x2000).emit(0xef) // mov dx,604h; mov ax,SLP_EN; out dx,ax
	p.emit(0xfa, 0xf4)
}

func (p *program) subroutines() {
	// print: lodsb; test al,al; jz; call putc; jmp
	p.label("print").emit(0xac, 0x84, 0xc0).jump(0x84, "printed").jump(0xe8, "putc").jump(0xe9, "print")
	p.label("printed").emit(0xc3)
	// putc: waits until the UART at 3f8h can transmit, then writes al.
	p.label("putc").emit(0x52, 0x50, 0xba).word(0x3fd).label("busy").emit(0xec, 0xa8, 0x20).jump(0x84, "busy")
	p.emit(0x58, 0xba).word(0x3f8).emit(0xee, 0x5a, 0xc3)
	// hex: prints eax and a line break.
	p.label("hex").emit(0xb9).word(8)
	p.label("digit").emit(0x66, 0xc1, 0xc0, 0x04, 0x66, 0x50, 0x24, 0x0f, 0x3c, 0x0a).jump(0x82, "low").emit(0x04, 0x27)
	p.label("low").emit(0x04, 0x30).jump(0xe8, "putc").emit(0x66, 0x58, 0x49).jump(0x85, "digit")
	p.print("line").emit(0xc3)
}

func (p *program) data() {
	for _, text := range [][2]string{
		{"boot", "BOOT\r\n"}, {"disk", "disk="}, {"runs", "runs="}, {"cd", "cd="}, {"line", "\r\n"},
		{"ready", "READY\r\n"}, {"button", "BUTTON\r\n"},
	} {
		p.label(text[0]).emit([]byte(text[1] + "\x00")...)
	}
	// Disk address packets: size, sectors, buffer, first sector.
	p.label("sector1").emit(16, 0, 1, 0).word(counter).word(0).emit(1, 0, 0, 0, 0, 0, 0, 0)
	p.label("sector16").emit(16, 0, 1, 0).word(volume).word(0).emit(16, 0, 0, 0, 0, 0, 0, 0)
}
